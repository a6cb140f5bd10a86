// What the samplers draw, against what numpy, PyTorch and Paddle themselves
// drew; the scripts in testdata/ draw it again and describe the files.
#include <cstdint>
#include <istream>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/batch_sampler.h"
#include "sampler/distributed_sampler.h"
#include "sampler/golden_file.h"
#include "sampler/paddle_sampler.h"
#include "sampler/permutation.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

auto Differs(const std::string& what) {
  return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
}

// testdata/make_numpy_golden.py
std::vector<int32_t> Shuffled(uint32_t seed, int64_t n) {
  std::vector<int32_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  NumpyShuffle(seed, values);
  return values;
}

struct NumpyRecord {
  uint32_t seed = 0;
  int64_t size = 0;
  GoldenList list;
};

absl::StatusOr<NumpyRecord> ParseNumpy(const std::string& line) {
  NumpyRecord record;
  std::istringstream in(line);
  std::string kind;
  in >> kind >> record.seed >> record.size;
  LOCKSTEP_ASSIGN_OR_RETURN(record.list, ParseGoldenList(kind, in));
  return record;
}

absl::Status CheckRecord(const NumpyRecord& record) {
  const std::vector<int32_t> values = Shuffled(record.seed, record.size);
  return CheckGoldenList(record.list, {values.begin(), values.end()});
}

TEST(NumpyShuffleTest, ShufflesAsNumpyDoes) {
  const absl::StatusOr<std::vector<NumpyRecord>> records =
      ReadGoldenRecords("numpy_golden.txt", ParseNumpy);
  ASSERT_THAT(records, IsOk());
  EXPECT_EQ(records->size(), 374u);  // A shortened file must not pass.
  for (const NumpyRecord& record : *records) {
    EXPECT_THAT(CheckRecord(record), IsOk())
        << "seed " << record.seed << " size " << record.size;
  }
}

TEST(NumpyShuffleTest, CheckRejectsAChangedRecord) {
  const absl::StatusOr<std::vector<NumpyRecord>> records =
      ReadGoldenRecords("numpy_golden.txt", ParseNumpy);
  ASSERT_THAT(records, IsOk());
  for (NumpyRecord record : *records) {
    record.list.items.back() += 1;
    EXPECT_THAT(CheckRecord(record), Differs("items differ"));
    if (!record.list.hashed) continue;
    record.list.hash += 1;
    EXPECT_THAT(CheckRecord(record), Differs("hash differs"));
  }
}

// numpy's loop, written out plainly.
std::vector<int32_t> PlainShuffled(uint32_t seed, int64_t n) {
  std::mt19937 generator(seed);
  std::vector<int32_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  for (int64_t i = n - 1; i > 0; --i) {
    int64_t mask = 1;
    while (mask <= i) mask *= 2;
    int64_t place = 0;
    do {
      place = generator() & (mask - 1);
    } while (place > i);
    std::swap(values[i], values[place]);
  }
  return values;
}

TEST(NumpyShuffleTest, MatchesThePlainLoopAtEverySmallSize) {
  for (int64_t n = 0; n <= 1400; ++n) {
    const auto seed = static_cast<uint32_t>(n % 7);
    ASSERT_EQ(Shuffled(seed, n), PlainShuffled(seed, n)) << "n " << n;
  }
}

TEST(NumpyShuffleTest, MovesWhateverValuesThereAre) {
  std::vector<int32_t> values(1000);
  for (int32_t i = 0; i < 1000; ++i) values[i] = i % 37 - 5;
  std::vector<int32_t> want;
  for (const int32_t i : Shuffled(11, 1000)) want.push_back(values[i]);
  NumpyShuffle(11, values);
  EXPECT_EQ(values, want);
}

// testdata/make_golden.py
struct TorchRecord {
  std::string line;
  DistributedSamplerOptions options;
  int64_t epoch = 0;
  GoldenList list;
};

absl::StatusOr<TorchRecord> ParseTorch(const std::string& line) {
  TorchRecord record;
  record.line = line;
  std::istringstream in(line);
  std::string kind, seed;
  bool drop_last = false;
  in >> kind >> record.options.dataset_size >> record.options.world_size >>
      drop_last >> record.options.shuffle >> seed >> record.epoch >>
      record.options.rank;
  record.options.tail = drop_last ? Tail::kDrop : Tail::kPad;
  uint64_t wide_seed = 0;  // PyTorch takes seeds above the range of int64.
  if (absl::SimpleAtoi(seed, &wide_seed)) {
    record.options.seed = static_cast<int64_t>(wide_seed);
  } else if (!absl::SimpleAtoi(seed, &record.options.seed)) {
    return absl::DataLossError(absl::StrCat("bad seed: ", line));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(record.list, ParseGoldenList(kind, in));
  return record;
}

absl::Status CheckRecord(const TorchRecord& record) {
  absl::StatusOr<DistributedSampler> sampler =
      DistributedSampler::Create(record.options);
  if (record.list.items.empty() && absl::IsInvalidArgument(sampler.status())) {
    return absl::OkStatus();  // PyTorch draws nothing; we say so at once.
  }
  LOCKSTEP_RETURN_IF_ERROR(sampler.status());
  sampler->SetEpoch(record.epoch);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                            sampler->Indices());
  return CheckGoldenList(record.list, indices);
}

TEST(DistributedSamplerGoldenTest, DrawsWhatPyTorchDraws) {
  const absl::StatusOr<std::vector<TorchRecord>> records =
      ReadGoldenRecords("torch_golden.txt", ParseTorch);
  ASSERT_THAT(records, IsOk());
  EXPECT_EQ(records->size(), 4637u);  // A shortened file must not pass.
  for (const TorchRecord& record : *records) {
    EXPECT_THAT(CheckRecord(record), IsOk()) << record.line;
  }
}

TEST(DistributedSamplerGoldenTest, CheckRejectsAChangedRecord) {
  const absl::StatusOr<std::vector<TorchRecord>> records =
      ReadGoldenRecords("torch_golden.txt", ParseTorch);
  ASSERT_THAT(records, IsOk());
  int listed = 0, hashed = 0;
  for (TorchRecord record : *records) {
    if (record.list.items.empty()) continue;
    ++(record.list.hashed ? hashed : listed);
    record.list.items.back() += 1;
    EXPECT_THAT(CheckRecord(record), Differs("items differ"));
    record.list.hash += 1;
    if (record.list.hashed) {
      EXPECT_THAT(CheckRecord(record), Differs("hash differs"));
    }
  }
  EXPECT_GT(listed, 0);
  EXPECT_GT(hashed, 0);
}

// testdata/make_paddle_golden.py: batches, so PaddleSampler is cut by
// BatchSampler.
using Batches = std::vector<std::vector<int64_t>>;

enum class Kind { kList, kHash, kError };

struct PaddleRecord {
  std::string line;
  Kind kind = Kind::kList;
  PaddleSamplerOptions options;  // The rank only of a list.
  bool drop_last = false;
  std::string epoch;  // Or "-".
  int iteration = 0;
  Batches list;             // Of a list.
  int64_t num_batches = 0;  // These three of a hash.
  int64_t count = 0;
  uint64_t hash = 0;
};

absl::StatusOr<Batches> ParseBatches(std::istream& in) {
  Batches batches;
  for (std::string joined; in >> joined;) {
    std::vector<int64_t>& batch = batches.emplace_back();
    for (const absl::string_view index : absl::StrSplit(joined, ',')) {
      if (!absl::SimpleAtoi(index, &batch.emplace_back())) {
        return absl::DataLossError(absl::StrCat("not a number: ", index));
      }
    }
  }
  return batches;
}

absl::StatusOr<PaddleRecord> ParsePaddle(const std::string& line) {
  PaddleRecord record;
  record.line = line;
  std::istringstream in(line);
  std::string kind;
  in >> kind >> record.options.dataset_size >> record.options.world_size >>
      record.options.batch_size >> record.drop_last >> record.options.shuffle >>
      record.epoch >> record.iteration;
  if (kind == "hash") {
    record.kind = Kind::kHash;
    in >> record.num_batches >> record.count >> record.hash;
  } else if (kind == "error") {
    record.kind = Kind::kError;
  } else {
    in >> record.options.rank;
  }
  if (!in || (record.kind == Kind::kList && kind != "list")) {
    return absl::DataLossError(absl::StrCat("bad record: ", line));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(record.list, ParseBatches(in));
  return record;
}

// A rank's batches of the record's iteration, after those before it.
absl::StatusOr<Batches> Draw(const PaddleRecord& record, int rank) {
  PaddleSamplerOptions options = record.options;
  options.rank = rank;
  LOCKSTEP_ASSIGN_OR_RETURN(PaddleSampler sampler,
                            PaddleSampler::Create(options));
  LOCKSTEP_ASSIGN_OR_RETURN(
      BatchSampler batch_sampler,
      BatchSampler::Create(
          std::make_unique<PaddleSampler>(std::move(sampler)),
          {.batch_size = options.batch_size, .drop_last = record.drop_last}));
  int64_t epoch = 0;
  if (absl::SimpleAtoi(record.epoch, &epoch)) batch_sampler.SetEpoch(epoch);
  for (int i = 0; i < record.iteration; ++i) {
    if (!batch_sampler.BeginEpoch().ok()) {
      return absl::DataLossError(absl::StrCat("fails before: ", record.line));
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(batch_sampler.BeginEpoch());
  Batches batches;
  while (const auto batch = batch_sampler.NextBatch()) {
    batches.emplace_back(batch->begin(), batch->end());
  }
  return batches;
}

absl::Status CheckHash(const PaddleRecord& record) {
  int64_t num_batches = 0;
  int64_t count = 0;
  uint64_t hash = 0;
  for (int rank = 0; rank < record.options.world_size; ++rank) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Batches batches, Draw(record, rank));
    for (const std::vector<int64_t>& batch : batches) {
      for (const int64_t index : batch) {
        hash = GoldenHashStep(hash, static_cast<uint64_t>(index) + 1);
      }
      hash = GoldenHashStep(hash, 0);
      count += std::ssize(batch);
    }
    hash = GoldenHashStep(hash, 0);
    num_batches += std::ssize(batches);
  }
  if (num_batches == record.num_batches && count == record.count &&
      hash == record.hash) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("hash differs: ", record.line));
}

absl::Status CheckError(const PaddleRecord& record) {
  for (int rank = 0; rank < record.options.world_size; ++rank) {
    if (!absl::IsInvalidArgument(Draw(record, rank).status())) {
      return absl::DataLossError(absl::StrCat("no error: ", record.line));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRecord(const PaddleRecord& record) {
  if (record.kind == Kind::kError) return CheckError(record);
  const bool empty = record.list.empty() && record.num_batches == 0;
  if (empty && absl::IsInvalidArgument(Draw(record, 0).status())) {
    return absl::OkStatus();  // Paddle draws nothing; we say so at once.
  }
  if (record.kind == Kind::kHash) return CheckHash(record);
  LOCKSTEP_ASSIGN_OR_RETURN(const Batches batches,
                            Draw(record, record.options.rank));
  if (batches == record.list) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("batches differ: ", record.line));
}

TEST(PaddleSamplerGoldenTest, DrawsWhatPaddleDraws) {
  const absl::StatusOr<std::vector<PaddleRecord>> records =
      ReadGoldenRecords("paddle_golden.txt", ParsePaddle);
  ASSERT_THAT(records, IsOk());
  EXPECT_EQ(records->size(), 6993u);  // A shortened file must not pass.
  for (const PaddleRecord& record : *records)
    EXPECT_THAT(CheckRecord(record), IsOk());
}

absl::Status CheckChanged(PaddleRecord record, void (*change)(PaddleRecord&)) {
  change(record);
  return CheckRecord(record);
}

TEST(PaddleSamplerGoldenTest, CheckRejectsAChangedRecord) {
  const absl::StatusOr<std::vector<PaddleRecord>> records =
      ReadGoldenRecords("paddle_golden.txt", ParsePaddle);
  ASSERT_THAT(records, IsOk());
  for (const PaddleRecord& record : *records) {
    if (record.options.dataset_size > 100) continue;  // The same, but slow.
    const auto changed = [&record](void (*change)(PaddleRecord&)) {
      return CheckChanged(record, change);
    };
    if (record.kind == Kind::kError) {
      EXPECT_THAT(changed([](PaddleRecord& r) { r.epoch = "7"; }),
                  Differs("no error"));
    } else if (record.kind == Kind::kList && !record.list.empty()) {
      EXPECT_THAT(changed([](PaddleRecord& r) { r.list.back().back() += 1; }),
                  Differs("batches differ"));
      EXPECT_THAT(changed([](PaddleRecord& r) { r.list.back().pop_back(); }),
                  Differs("batches differ"));
    } else if (record.num_batches > 0) {
      EXPECT_THAT(changed([](PaddleRecord& r) { r.num_batches += 1; }),
                  Differs("hash differs"));
      EXPECT_THAT(changed([](PaddleRecord& r) { r.count += 1; }),
                  Differs("hash differs"));
      EXPECT_THAT(changed([](PaddleRecord& r) { r.hash += 1; }),
                  Differs("hash differs"));
    }
  }
}

// An epoch that moves on in the wrong way, and a batch that ends elsewhere.
TEST(PaddleSamplerGoldenTest, CheckRejectsAnotherIterationAndBatchSize) {
  const absl::StatusOr<PaddleRecord> record =
      ParsePaddle("list 11 2 3 0 1 - 1 0 2,3,4 0,7,0");
  ASSERT_THAT(record, IsOk());
  EXPECT_THAT(CheckRecord(*record), IsOk());
  EXPECT_THAT(CheckChanged(*record, [](PaddleRecord& r) { r.iteration = 0; }),
              Differs("differ"));
  EXPECT_THAT(
      CheckChanged(*record, [](PaddleRecord& r) { r.options.batch_size = 2; }),
      Differs("differ"));
}

}  // namespace
}  // namespace lockstep
