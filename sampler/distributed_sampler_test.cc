// DistributedSampler's structure, over every small case, and its errors; what
// it draws is compared with PyTorch's in distributed_sampler_golden_test.cc.
#include "sampler/distributed_sampler.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMaxSize = 40;
constexpr int kMaxWorldSize = 9;
constexpr int64_t kEpochs = 3;

using Lists = std::vector<std::vector<int64_t>>;  // One of indices per rank.
using Factory = std::function<std::unique_ptr<Sampler>(
    const DistributedSamplerOptions& options)>;

absl::Status Fault(const DistributedSamplerOptions& options, int64_t epoch,
                   const std::string& what) {
  return absl::DataLossError(
      absl::StrCat(what, ": n=", options.dataset_size,
                   " P=", options.world_size, " shuffle=", options.shuffle,
                   " drop_last=", options.drop_last, " epoch=", epoch));
}

Lists ListsOfAllRanks(const Factory& factory, DistributedSamplerOptions options,
                      int64_t epoch) {
  Lists lists;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    const std::unique_ptr<Sampler> sampler = factory(options);
    sampler->SetEpoch(epoch);
    lists.push_back(sampler->Indices());
  }
  return lists;
}

// Lays the ranks' lists out as the epoch order by dealing in turn, as a stride
// of P would have taken it apart, and checks its length, coverage and padding.
absl::Status CheckEpoch(const DistributedSamplerOptions& options, int64_t epoch,
                        const Lists& lists) {
  const int64_t n = options.dataset_size;
  const int64_t ranks = options.world_size;
  const int64_t samples =
      options.drop_last ? n / ranks : (n + ranks - 1) / ranks;
  std::vector<int64_t> order(samples * ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (static_cast<int64_t>(lists[rank].size()) != samples) {
      return Fault(options, epoch, "wrong number of samples");
    }
    for (int64_t i = 0; i < samples; ++i) {
      order[rank + i * ranks] = lists[rank][i];
    }
  }
  const int64_t unpadded = std::min<int64_t>(n, samples * ranks);
  std::set<int64_t> seen(order.begin(), order.begin() + unpadded);
  if (static_cast<int64_t>(seen.size()) != unpadded || *seen.begin() < 0 ||
      *seen.rbegin() >= n) {
    return Fault(options, epoch, "a sample is visited twice or does not exist");
  }
  for (int64_t p = unpadded; p < samples * ranks; ++p) {
    if (order[p] != order[p - n]) {
      return Fault(options, epoch, "padding does not repeat the start");
    }
  }
  for (int64_t p = 0; !options.shuffle && p < unpadded; ++p) {
    if (order[p] != p) {
      return Fault(options, epoch, "unshuffled order is not 0, 1, 2, ...");
    }
  }
  return absl::OkStatus();
}

// An epoch's lists must change with the epoch if shuffled, else stay.
absl::Status CheckConfiguration(const Factory& factory,
                                const DistributedSamplerOptions& options) {
  std::set<Lists> distinct;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Lists lists = ListsOfAllRanks(factory, options, epoch);
    LOCKSTEP_RETURN_IF_ERROR(CheckEpoch(options, epoch, lists));
    distinct.insert(lists);
  }
  // The seed is fixed; from 10 samples on none of these epochs coincide.
  const bool must_differ = options.shuffle && options.dataset_size >= 10;
  const size_t want = must_differ ? kEpochs : 1;
  if ((must_differ || !options.shuffle) && distinct.size() != want) {
    return Fault(options, kEpochs,
                 "epochs alike, or unshuffled ones different");
  }
  return absl::OkStatus();
}

absl::Status CheckSampler(const Factory& factory) {
  DistributedSamplerOptions options;
  options.seed = 42;
  for (int64_t n = 1; n <= kMaxSize; ++n) {
    for (int ranks = 1; ranks <= kMaxWorldSize; ++ranks) {
      for (const int flags : {0, 1, 2, 3}) {
        options.dataset_size = n;
        options.world_size = ranks;
        options.shuffle = (flags & 1) != 0;
        options.drop_last = (flags & 2) != 0;
        if (options.drop_last && n < ranks) continue;
        LOCKSTEP_RETURN_IF_ERROR(CheckConfiguration(factory, options));
      }
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<Sampler> MakeOurs(const DistributedSamplerOptions& options) {
  auto sampler = DistributedSampler::Create(options);
  EXPECT_THAT(sampler, IsOk());
  return std::make_unique<DistributedSampler>(*std::move(sampler));
}

// A sampler broken on purpose: it takes the right order of the epoch, from a
// single rank without padding, and then goes wrong in one respect.
class BrokenSampler : public Sampler {
 public:
  enum class Bug { kNone, kPadsFromTheEnd, kStridesByBlocks, kForgetsEpoch };

  BrokenSampler(const DistributedSamplerOptions& options, Bug bug)
      : options_(options), bug_(bug) {}

  void SetEpoch(int64_t epoch) override {
    if (bug_ != Bug::kForgetsEpoch) epoch_ = epoch;
  }

  std::vector<int64_t> Indices() const override {
    DistributedSamplerOptions whole = options_;
    whole.world_size = 1;
    whole.rank = 0;
    const std::unique_ptr<Sampler> sampler = MakeOurs(whole);
    sampler->SetEpoch(epoch_);
    std::vector<int64_t> order = sampler->Indices();
    const int64_t ranks = options_.world_size;
    const int64_t n = options_.dataset_size;
    const int64_t samples =
        options_.drop_last ? n / ranks : (n + ranks - 1) / ranks;
    order.resize(std::min(n, samples * ranks));
    for (int64_t p = n; p < samples * ranks; ++p) {
      order.push_back(
          order[bug_ == Bug::kPadsFromTheEnd ? n - 1 - p % n : p - n]);
    }
    const bool blocks = bug_ == Bug::kStridesByBlocks;
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < samples; ++i) {
      indices.push_back(order[blocks ? options_.rank * samples + i
                                     : options_.rank + i * ranks]);
    }
    return indices;
  }

 private:
  DistributedSamplerOptions options_;
  Bug bug_;
  int64_t epoch_ = 0;
};

Factory Broken(BrokenSampler::Bug bug) {
  return [bug](const DistributedSamplerOptions& options) {
    return std::make_unique<BrokenSampler>(options, bug);
  };
}

absl::Status ErrorOf(const DistributedSamplerOptions& options) {
  return DistributedSampler::Create(options).status();
}

TEST(DistributedSamplerTest, CoversEveryEpochOverAllRanks) {
  EXPECT_THAT(CheckSampler(MakeOurs), IsOk());
}

TEST(DistributedSamplerTest, CheckAcceptsTheSamplerTheBugsArePlantedIn) {
  EXPECT_THAT(CheckSampler(Broken(BrokenSampler::Bug::kNone)), IsOk());
}

TEST(DistributedSamplerTest, CheckRejectsPaddingFromTheEnd) {
  EXPECT_THAT(CheckSampler(Broken(BrokenSampler::Bug::kPadsFromTheEnd)),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("padding does not repeat the start")));
}

TEST(DistributedSamplerTest, CheckRejectsBlocksInsteadOfStrides) {
  EXPECT_THAT(CheckSampler(Broken(BrokenSampler::Bug::kStridesByBlocks)),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("unshuffled order is not")));
}

TEST(DistributedSamplerTest, CheckRejectsForgettingTheEpoch) {
  EXPECT_THAT(CheckSampler(Broken(BrokenSampler::Bug::kForgetsEpoch)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("epochs alike")));
}

// 11 samples on 2 ranks: 6 each, the first repeated at the end.
TEST(DistributedSamplerTest, PadsElevenSamplesToTwelveForTwoRanks) {
  DistributedSamplerOptions options;
  options.dataset_size = 11;
  options.world_size = 2;
  options.shuffle = false;
  EXPECT_THAT(ListsOfAllRanks(MakeOurs, options, 0),
              ElementsAre(ElementsAre(0, 2, 4, 6, 8, 10),
                          ElementsAre(1, 3, 5, 7, 9, 0)));
}

TEST(DistributedSamplerTest, SizesSayWhatIndicesHolds) {
  DistributedSamplerOptions options;
  options.dataset_size = 11;
  options.world_size = 4;
  auto padded = DistributedSampler::Create(options);
  ASSERT_THAT(padded, IsOk());
  EXPECT_EQ(padded->num_samples(), 3);
  EXPECT_EQ(padded->total_size(), 12);
  options.drop_last = true;
  auto dropped = DistributedSampler::Create(options);
  ASSERT_THAT(dropped, IsOk());
  EXPECT_EQ(dropped->num_samples(), 2);
  EXPECT_EQ(dropped->total_size(), 8);
}

TEST(DistributedSamplerTest, RejectsOptionsOutOfRange) {
  const auto invalid = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  DistributedSamplerOptions options;
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    options.dataset_size = size;
    EXPECT_THAT(ErrorOf(options),
                invalid(absl::StrCat("dataset_size is ", size)));
  }
  options.dataset_size = 3;
  for (const int ranks : {0, -1}) {
    options.world_size = ranks;
    EXPECT_THAT(ErrorOf(options),
                invalid(absl::StrCat("world_size is ", ranks)));
  }
  options.world_size = 4;
  for (const int rank : {-1, 4, std::numeric_limits<int>::max()}) {
    options.rank = rank;
    EXPECT_THAT(ErrorOf(options), invalid(absl::StrCat("rank is ", rank)));
  }
}

TEST(DistributedSamplerTest, RejectsAnEpochThatDropLastEmpties) {
  DistributedSamplerOptions options;
  options.dataset_size = 3;
  options.world_size = 4;
  options.drop_last = true;
  EXPECT_THAT(ErrorOf(options), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("drop_last")));
  options.world_size = 3;
  EXPECT_THAT(ErrorOf(options), IsOk());
}

// The sum of seed and epoch wraps instead of being undefined.
TEST(DistributedSamplerTest, SeedPlusEpochWraps) {
  DistributedSamplerOptions options;
  options.dataset_size = 20;
  options.seed = std::numeric_limits<int64_t>::max();
  const std::unique_ptr<Sampler> top = MakeOurs(options);
  top->SetEpoch(1);
  options.seed = 0;  // 2^63 has the same low 32 bits.
  EXPECT_EQ(top->Indices(), MakeOurs(options)->Indices());
}

}  // namespace
}  // namespace lockstep
