// Tests that batches come in order from any number of workers, within the
// allowed memory, and that errors belong to the right batch.
#include "models/data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/transform.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::HasSubstr;

using Batches = std::vector<std::vector<int64_t>>;

constexpr ImageShape kShape = {2, 3, 1};
constexpr uint64_t kSeed = 3;
constexpr int64_t kEpoch = 5;
// The bytes of one sample with its labels; see SlotBytes.
constexpr int64_t kSampleBytes = 6 * 4 + 4 + 12;

// A source whose samples have their index as pixels. Each Load calls `before`
// first.
class NumberSource : public SampleSource {
 public:
  explicit NumberSource(
      std::function<absl::Status(int64_t index)> before = nullptr)
      : before_(std::move(before)) {}

  ImageShape shape() const override { return kShape; }
  absl::StatusOr<SampleLabel> Load(const SampleKey& key, int worker,
                                   std::span<float> out) override {
    EXPECT_EQ(key.seed, kSeed);
    EXPECT_EQ(key.epoch, kEpoch);
    // No other thread uses this worker's number.
    EXPECT_FALSE(busy_[worker].exchange(true));
    const absl::Status status = before_ ? before_(key.index) : absl::OkStatus();
    std::ranges::fill(out, static_cast<float>(key.index));
    EXPECT_TRUE(busy_[worker].exchange(false));
    ++loads;
    if (!status.ok()) return status;
    const auto label = static_cast<int32_t>(key.index % 10);
    return SampleLabel{label, label + 1, 0.25f};
  }

  std::atomic<int64_t> loads = 0;

 private:
  const std::function<absl::Status(int64_t)> before_;
  std::atomic<bool> busy_[8] = {};
};

std::unique_ptr<Loader> MakeLoader(SampleSource& source, const Batches& batches,
                                   const LoaderOptions& options) {
  absl::StatusOr<std::unique_ptr<Loader>> loader =
      Loader::Create(source, kSeed, kEpoch, batches, options);
  EXPECT_THAT(loader, IsOk());
  return *std::move(loader);
}

void ExpectBatch(const absl::StatusOr<LoadedBatch>& loaded,
                 const std::vector<int64_t>& batch) {
  ASSERT_THAT(loaded, IsOk());
  ASSERT_EQ(loaded->images.size(), batch.size() * kShape.size());
  ASSERT_EQ(loaded->labels.size(), batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto label = static_cast<int32_t>(batch[i] % 10);
    EXPECT_THAT(loaded->images.subspan(i * kShape.size(), kShape.size()),
                Each(static_cast<float>(batch[i])));
    EXPECT_EQ(loaded->labels[i], label);
    EXPECT_EQ(loaded->mixed[i], (SampleLabel{label, label + 1, 0.25f}));
  }
}

// Returns batches with empty ones first, last and between. The longest has over
// 2,000 samples, so that several workers share it.
Batches AllKinds() {
  Batches batches = {{}, {1, 2, 3}, {4}, {}, {}, {7, 7, 7, 9}, {}, {}};
  for (int64_t i = 0; i < 6001; ++i) batches[6].push_back(i);
  return batches;
}

TEST(LoaderTest, GivesTheBatchesInOrder) {
  for (const Batches& batches : {AllKinds(), Batches{}, Batches{{}}}) {
    for (const int workers : {0, 1, 2, 5}) {
      NumberSource source;
      const auto loader = MakeLoader(source, batches, {.workers = workers});
      for (const std::vector<int64_t>& batch : batches) {
        const absl::Duration before = loader->waited();
        ExpectBatch(loader->Next(), batch);
        EXPECT_GE(loader->waited(), before);
      }
    }
  }
}

// Returns batches of 16, numbered from 0 on.
Batches SixteenEach(int64_t n) {
  Batches batches(n, std::vector<int64_t>(16));
  for (int64_t i = 0; i < n * 16; ++i) batches[i / 16][i % 16] = i;
  return batches;
}

// Each part of a batch's memory is rounded up to 64 bytes: 6 floats, a label
// and a mixed label for each of 16 samples.
constexpr int64_t kSixteen = 384 + 64 + 192;
static_assert(kSixteen == 16 * kSampleBytes);

TEST(LoaderTest, HoldsNoMoreThanIsAllowedAndReadsAheadAsFar) {
  for (const int64_t slots : {1, 2, 3, 4}) {
    for (const int workers : {1, 3}) {
      std::mutex mutex;
      std::condition_variable loaded;
      int64_t held = 0;      // The batch that the caller holds.
      int64_t furthest = 0;  // The last sample that was loaded.
      NumberSource source([&](int64_t index) {
        const std::lock_guard lock(mutex);
        EXPECT_LT(index / 16, held + slots);
        furthest = std::max(furthest, index);
        loaded.notify_all();
        return absl::OkStatus();
      });
      int64_t allocated = 0;
      const LoaderOptions options = {
          .workers = workers,
          .max_bytes = kSixteen * (slots + 1) - 1 + (slots == 4) * kSixteen * 9,
          .allocate = [&](int64_t bytes) {
            allocated += bytes;
            return std::shared_ptr<std::byte>(
                new (std::align_val_t{64}) std::byte[bytes], [](std::byte* p) {
                  ::operator delete[](p, std::align_val_t{64});
                });
          }};
      const Batches batches = SixteenEach(9);
      const auto loader = MakeLoader(source, batches, options);
      EXPECT_EQ(loader->slots(), slots);
      EXPECT_EQ(allocated, slots * kSixteen);
      for (int64_t b = 0; b < 9; ++b) {
        {
          const std::lock_guard lock(mutex);
          held = b;
        }
        ExpectBatch(loader->Next(), batches[b]);
        // All batches that may be loaded ahead are loaded without another call.
        std::unique_lock lock(mutex);
        EXPECT_TRUE(loaded.wait_for(lock, std::chrono::seconds(60), [&] {
          return furthest == std::min<int64_t>(b + slots, 9) * 16 - 1;
        }));
      }
    }
  }
}

TEST(LoaderTest, NamesTheFirstBadSampleAtItsBatch) {
  for (const int workers : {0, 1, 4}) {
    NumberSource source([](int64_t index) -> absl::Status {
      if (index == 58) throw std::bad_alloc();
      if (index < 40 || index % 3 != 0) return absl::OkStatus();
      return absl::DataLossError(absl::StrCat(index, ".jpg: damaged"));
    });
    const Batches batches = SixteenEach(6);
    const auto loader = MakeLoader(source, batches, {.workers = workers});
    ExpectBatch(loader->Next(), batches[0]);
    ExpectBatch(loader->Next(), batches[1]);
    for (int again = 0; again < 2; ++again) {
      EXPECT_THAT(loader->Next().status(),
                  StatusIs(absl::StatusCode::kDataLoss, "42.jpg: damaged"));
    }
  }
  NumberSource source([](int64_t) -> absl::Status { throw std::bad_alloc(); });
  EXPECT_THAT(MakeLoader(source, {{1}}, {.workers = 1})->Next().status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no memory to load an image")));
}

TEST(LoaderTest, EndsInTheMiddleAfterTheSampleThatIsBeingLoaded) {
  for (int next = 0; next < 3; ++next) {
    NumberSource source;
    const auto batches = SixteenEach(100'000);
    auto loader = MakeLoader(source, batches, {.workers = 2});
    for (int b = 0; b < next; ++b) ExpectBatch(loader->Next(), batches[b]);
    loader.reset();
    const int64_t loads = source.loads;
    EXPECT_LE(loads, 16 * (next + Loader::kMaxBatches));
  }
}

TEST(LoaderTest, RefusesWhatCannotBe) {
  NumberSource source;
  const Batches batches = SixteenEach(2);
  const auto error = [&](const LoaderOptions& options) {
    return Loader::Create(source, kSeed, kEpoch, batches, options).status();
  };
  EXPECT_THAT(
      error({.workers = -1}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("workers is -1")));
  EXPECT_THAT(error({.max_bytes = kSixteen - 1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a batch of 16 samples takes 640 bytes; at "
                                 "most 639 are allowed")));
  EXPECT_THAT(error({.allocate = [](int64_t) { return nullptr; }}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no memory for 1 batches of 640 bytes")));
}

// Calls ImageSource from several threads at once. Each sample equals the sample
// that one thread alone computes.
TEST(ImageSourceTest, TransformsTheSameOnAnyThread) {
  constexpr int64_t kImages = 200;
  constexpr ImageShape kImage = {7, 6, 3};
  std::vector<uint8_t> bytes(kImages * kImage.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i * i);
  }
  const MemoryDataset dataset(kImage, 1, bytes, std::vector<uint8_t>(kImages));
  TransformOptions options = {.height = 5, .width = 4};
  ASSERT_THAT(ParseAugmentation("standard,jitter,erase,mixup,cutmix", options),
              IsOk());
  const absl::StatusOr<Transform> transform =
      Transform::Create(options, dataset);
  ASSERT_THAT(transform, IsOk());
  Batches batches(1);
  for (int64_t i = 0; i < kImages; ++i) batches[0].push_back(i);
  std::set<std::vector<float>> results;
  for (const int workers : {0, 1, 3}) {
    ImageSource source(dataset, *transform, workers);
    const auto loader = MakeLoader(source, batches, {.workers = workers});
    const absl::StatusOr<LoadedBatch> loaded = loader->Next();
    ASSERT_THAT(loaded, IsOk());
    results.emplace(loaded->images.begin(), loaded->images.end());
  }
  EXPECT_EQ(results.size(), 1u);
}

}  // namespace
}  // namespace lockstep
