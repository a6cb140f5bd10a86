// Compares the draws of the samplers with the draws of numpy, PyTorch and
// Paddle. The scripts in testdata/ make the files and describe them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <istream>
#include <memory>
#include <numeric>
#include <random>
#include <span>
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
#include "sampler/permutation.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

auto Differs(const std::string& what) {
  return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
}

// Parses the lines of testdata/`name`, except comments and empty lines. Fails
// and returns nothing unless there are `count` of them, so that a shortened
// file cannot pass.
template <typename Record>
std::vector<Record> ReadRecords(
    const std::string& name, size_t count,
    absl::StatusOr<Record> (*parse)(const std::string& line)) {
  std::vector<Record> records;
  std::ifstream file(absl::StrCat("sampler/testdata/", name));
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    absl::StatusOr<Record> record = parse(line);
    EXPECT_THAT(record, IsOk());
    if (record.ok()) records.push_back(*std::move(record));
  }
  EXPECT_EQ(records.size(), count) << name;
  if (records.size() != count) records.clear();
  return records;
}

// Returns the hash that the scripts use for lists: a polynomial modulo 2^64,
// sensitive to the items and to their order.
uint64_t HashOf(const std::vector<int64_t>& items) {
  uint64_t hash = 0;
  for (const int64_t item : items) {
    hash = hash * 6364136223846793005u + static_cast<uint64_t>(item + 1);
  }
  return hash;
}

// The content of a list in a record.
struct GoldenList {
  bool hashed = false;
  int64_t count = 0;           // If hashed.
  uint64_t hash = 0;           // If hashed.
  std::vector<int64_t> items;  // All; if hashed, the first and the last three,
                               // which overlap in short lists.
};

// Parses the list at the end of a record. The kind `list` has only the items;
// the kind `hash` has COUNT HASH ITEM... . Errors: kDataLoss for another kind,
// or if any part of the record, also before the list, is missing or is not a
// number.
absl::StatusOr<GoldenList> ParseGoldenList(const std::string& kind,
                                           std::istream& record) {
  GoldenList golden;
  golden.hashed = kind == "hash";
  if (golden.hashed) record >> golden.count >> golden.hash;
  if (!record || (!golden.hashed && kind != "list")) {
    return absl::DataLossError(absl::StrCat("bad or short record: ", kind));
  }
  for (int64_t item = 0; record >> item;) golden.items.push_back(item);
  if (!record.eof()) return absl::DataLossError("not a number in a list");
  return golden;
}

template <typename Items>
std::vector<int64_t> Ends(const Items& items) {
  const auto count = std::min<std::ptrdiff_t>(3, std::ssize(items));
  std::vector<int64_t> ends(items.begin(), items.begin() + count);
  ends.insert(ends.end(), items.end() - count, items.end());
  return ends;
}

// Checks that `items` are the list that the record describes.
absl::Status CheckGoldenList(const GoldenList& golden,
                             const std::vector<int64_t>& items) {
  if (!golden.hashed) {
    return items == golden.items ? absl::OkStatus()
                                 : absl::DataLossError("items differ");
  }
  if (std::ssize(items) != golden.count || HashOf(items) != golden.hash) {
    return absl::DataLossError("hash differs");
  }
  return Ends(items) == golden.items ? absl::OkStatus()
                                     : absl::DataLossError("items differ");
}

// Runs the controls of a file: the check must reject each of its records once
// an item or a hash has changed.
template <typename Record>
void ExpectChangesRejected(const std::vector<Record>& records) {
  int listed = 0, hashed = 0;
  for (Record record : records) {
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

// A record of testdata/make_numpy_golden.py or make_large_golden.py.
struct ShuffleRecord {
  std::string line;
  uint32_t seed = 0;
  int64_t size = 0;
  GoldenList list = {};
};

absl::StatusOr<ShuffleRecord> ParseNumpy(const std::string& line) {
  ShuffleRecord record = {.line = line};
  std::istringstream in(line);
  std::string kind;
  in >> kind >> record.seed >> record.size;
  LOCKSTEP_ASSIGN_OR_RETURN(record.list, ParseGoldenList(kind, in));
  return record;
}

std::vector<int32_t> Shuffled(uint32_t seed, int64_t n) {
  std::vector<int32_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  NumpyShuffle(seed, values);
  return values;
}

absl::Status CheckRecord(const ShuffleRecord& record) {
  const std::vector<int32_t> values = Shuffled(record.seed, record.size);
  return CheckGoldenList(record.list, {values.begin(), values.end()});
}

TEST(NumpyShuffleTest, ShufflesAsNumpyDoesAndCheckRejectsAChangedRecord) {
  const std::vector<ShuffleRecord> records =
      ReadRecords("numpy_golden.txt", 374, ParseNumpy);
  for (const ShuffleRecord& record : records) {
    EXPECT_THAT(CheckRecord(record), IsOk()) << record.line;
  }
  ExpectChangesRejected(records);
}

// Returns numpy's shuffle, computed by a plain loop.
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

// A record of testdata/make_golden.py.
struct TorchRecord {
  std::string line;
  DistributedSamplerOptions options;
  int64_t epoch = 0;
  GoldenList list = {};
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
  uint64_t wide_seed = 0;  // PyTorch's seeds can exceed int64.
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
    return absl::OkStatus();  // PyTorch draws nothing; ours is an error.
  }
  LOCKSTEP_RETURN_IF_ERROR(sampler.status());
  sampler->SetEpoch(record.epoch);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                            sampler->Indices());
  return CheckGoldenList(record.list, indices);
}

TEST(DistributedSamplerGoldenTest,
     DrawsWhatPyTorchDrawsAndCheckRejectsAChangedRecord) {
  const std::vector<TorchRecord> records =
      ReadRecords("torch_golden.txt", 4637, ParseTorch);
  for (const TorchRecord& record : records) {
    EXPECT_THAT(CheckRecord(record), IsOk()) << record.line;
  }
  ExpectChangesRejected(records);
}

// Parses a record of RandomPermutation. The sizes lie around the one from which
// PyTorch draws 64 bits for each element.
absl::StatusOr<ShuffleRecord> ParseLarge(const std::string& line) {
  ShuffleRecord record = {.line = line};
  std::istringstream in(line);
  std::string kind;
  in >> kind >> record.size >> record.seed >> record.list.hash;
  for (int64_t item = 0; in >> item;) record.list.items.push_back(item);
  if (!in.eof() || kind != "hash" || record.list.items.size() != 6) {
    return absl::DataLossError("bad record: " + line);
  }
  return record;
}

// Returns the hash that the script uses for large lists: modulo 2^64, a sum of
// the elements with a weight for each position.
uint64_t WeightedSum(std::span<const int32_t> values) {
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t weight = i * 6364136223846793005u;
    weight ^= weight >> 29;
    sum += (static_cast<uint64_t>(values[i]) + 1) * (weight | 1);
  }
  return sum;
}

absl::Status CheckLarge(const ShuffleRecord& record,
                        void (*shuffle)(uint64_t, std::span<int32_t>)) {
  // A vector would initialise its elements and so write them twice.
  const auto buffer = std::make_unique_for_overwrite<int32_t[]>(record.size);
  const std::span<int32_t> values(buffer.get(), record.size);
  shuffle(record.seed, values);
  if (Ends(values) != record.list.items ||
      WeightedSum(values) != record.list.hash) {
    return absl::DataLossError("differs: " + record.line);
  }
  return absl::OkStatus();
}

TEST(PermutationLargeTest, DrawsWhatPyTorchDrawsAroundTheWideSize) {
  const std::vector<ShuffleRecord> records =
      ReadRecords("torch_large_golden.txt", 2, ParseLarge);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].size, kWideDrawSize - 1);
  EXPECT_EQ(records[1].size, kWideDrawSize);
  for (const ShuffleRecord& record : records) {
    EXPECT_THAT(CheckLarge(record, RandomPermutation), IsOk());
  }
  // The control: draws of the other width.
  EXPECT_THAT(
      CheckLarge(records[1], permutation_internal::ShuffleByNarrowDraws),
      Differs("differs"));
}

// A record of testdata/make_paddle_golden.py holds batches, so a BatchSampler
// cuts PaddleSampler's indices. The test writes the batches as one list, with
// kEnd after each batch. If the script has hashed the batches of all ranks,
// kEnd also follows each rank's batches.
constexpr int64_t kEnd = -1;

struct PaddleRecord {
  std::string line;
  std::string kind;              // "list", "hash" or "error".
  PaddleSamplerOptions options;  // The rank is set only for a list.
  bool drop_last = false;
  std::string epoch;  // "-" if it is not set.
  int iteration = 0;
  std::vector<int64_t> items;  // The items of a list.
  int64_t num_batches = 0;     // This and the next two: of a hash.
  int64_t count = 0;
  uint64_t hash = 0;
};

absl::StatusOr<PaddleRecord> ParsePaddle(const std::string& line) {
  PaddleRecord record;
  record.line = line;
  std::istringstream in(line);
  in >> record.kind >> record.options.dataset_size >>
      record.options.world_size >> record.options.batch_size >>
      record.drop_last >> record.options.shuffle >> record.epoch >>
      record.iteration;
  if (record.kind == "hash") {
    in >> record.num_batches >> record.count >> record.hash;
  } else if (record.kind == "list") {
    in >> record.options.rank;
  }
  if (!in || (record.kind != "hash" && record.kind != "list" &&
              record.kind != "error")) {
    return absl::DataLossError(absl::StrCat("bad record: ", line));
  }
  for (std::string joined; in >> joined;) {
    for (const absl::string_view index : absl::StrSplit(joined, ',')) {
      if (!absl::SimpleAtoi(index, &record.items.emplace_back())) {
        return absl::DataLossError(absl::StrCat("not a number: ", index));
      }
    }
    record.items.push_back(kEnd);
  }
  return record;
}

// Returns a rank's batches of the record's iteration, after drawing the
// iterations before it.
absl::StatusOr<std::vector<int64_t>> Draw(const PaddleRecord& record,
                                          int rank) {
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
  std::vector<int64_t> items;
  while (const auto batch = batch_sampler.NextBatch()) {
    items.insert(items.end(), batch->begin(), batch->end());
    items.push_back(kEnd);
  }
  return items;
}

absl::Status CheckRecord(const PaddleRecord& record) {
  const bool listed = record.kind == "list";
  const bool fails = record.kind == "error";
  const bool empty = record.items.empty() && record.num_batches == 0;
  const auto differs = [&record](const char* what) {
    return absl::DataLossError(absl::StrCat(what, ": ", record.line));
  };
  std::vector<int64_t> items;
  int64_t num_batches = 0;
  for (int rank = 0; rank < record.options.world_size; ++rank) {
    if (listed && rank != record.options.rank) continue;
    const absl::StatusOr<std::vector<int64_t>> drawn = Draw(record, rank);
    // If Paddle draws nothing, our sampler returns an error.
    if (empty && absl::IsInvalidArgument(drawn.status())) continue;
    if (fails) return differs("no error");
    LOCKSTEP_RETURN_IF_ERROR(drawn.status());
    items.insert(items.end(), drawn->begin(), drawn->end());
    num_batches += std::count(drawn->begin(), drawn->end(), kEnd);
    if (!listed) items.push_back(kEnd);
  }
  if (listed) {
    return items == record.items ? absl::OkStatus() : differs("batches differ");
  }
  const int64_t count =
      std::ssize(items) - std::count(items.begin(), items.end(), kEnd);
  const bool same = num_batches == record.num_batches &&
                    count == record.count && HashOf(items) == record.hash;
  return fails || same ? absl::OkStatus() : differs("hash differs");
}

absl::Status CheckChanged(PaddleRecord record, void (*change)(PaddleRecord&)) {
  change(record);
  return CheckRecord(record);
}

TEST(PaddleSamplerGoldenTest, DrawsWhatPaddleDrawsAndRejectsAChangedRecord) {
  using Change = void (*)(PaddleRecord&);
  for (const PaddleRecord& record :
       ReadRecords("paddle_golden.txt", 6993, ParsePaddle)) {
    EXPECT_THAT(CheckRecord(record), IsOk());
    if (record.options.dataset_size > 100) continue;  // Larger cases are slow.
    const auto expect = [&](const char* message, std::vector<Change> changes) {
      for (const Change change : changes) {
        EXPECT_THAT(CheckChanged(record, change), Differs(message));
      }
    };
    if (record.kind == "error") {
      expect("no error", {[](PaddleRecord& r) { r.epoch = "7"; }});
    } else if (!record.items.empty()) {
      expect("batches differ",
             {[](PaddleRecord& r) { *(r.items.end() - 2) += 1; },
              [](PaddleRecord& r) { r.items.erase(r.items.end() - 2); }});
    } else if (record.num_batches > 0) {
      expect("hash differs", {[](PaddleRecord& r) { r.num_batches += 1; },
                              [](PaddleRecord& r) { r.count += 1; },
                              [](PaddleRecord& r) { r.hash += 1; }});
    }
  }
}

// The controls: an epoch that advances wrongly, and batches of another size.
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
