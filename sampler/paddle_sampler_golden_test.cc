// PaddleSampler, cut by BatchSampler, against the batches of Paddle's own
// class; see testdata/make_paddle_golden.py, which also describes the file.
#include <cstdint>
#include <istream>
#include <memory>
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
#include "sampler/golden_file.h"
#include "sampler/paddle_sampler.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

using Batches = std::vector<std::vector<int64_t>>;

enum class Kind { kList, kHash, kError };

struct Record {
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

absl::StatusOr<Record> ParseRecord(const std::string& line) {
  Record record;
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

absl::StatusOr<std::vector<Record>> ReadRecords() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                            ReadGoldenLines("paddle_golden.txt"));
  std::vector<Record> records;
  for (const std::string& line : lines) {
    LOCKSTEP_ASSIGN_OR_RETURN(records.emplace_back(), ParseRecord(line));
  }
  return records;
}

// A rank's batches of the record's iteration, after those before it.
absl::StatusOr<Batches> Draw(const Record& record, int rank) {
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

absl::Status CheckHash(const Record& record) {
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

absl::Status CheckError(const Record& record) {
  for (int rank = 0; rank < record.options.world_size; ++rank) {
    if (!absl::IsInvalidArgument(Draw(record, rank).status())) {
      return absl::DataLossError(absl::StrCat("no error: ", record.line));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRecord(const Record& record) {
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
  const absl::StatusOr<std::vector<Record>> records = ReadRecords();
  ASSERT_THAT(records, IsOk());
  EXPECT_EQ(records->size(), 6993u);  // A shortened file must not pass.
  for (const Record& record : *records)
    EXPECT_THAT(CheckRecord(record), IsOk());
}

absl::Status CheckChanged(Record record, void (*change)(Record&)) {
  change(record);
  return CheckRecord(record);
}

TEST(PaddleSamplerGoldenTest, CheckRejectsAChangedRecord) {
  const absl::StatusOr<std::vector<Record>> records = ReadRecords();
  ASSERT_THAT(records, IsOk());
  const auto differs = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
  };
  for (const Record& record : *records) {
    if (record.options.dataset_size > 100) continue;  // The same, but slow.
    const auto changed = [&record](void (*change)(Record&)) {
      return CheckChanged(record, change);
    };
    if (record.kind == Kind::kError) {
      EXPECT_THAT(changed([](Record& r) { r.epoch = "7"; }),
                  differs("no error"));
    } else if (record.kind == Kind::kList && !record.list.empty()) {
      EXPECT_THAT(changed([](Record& r) { r.list.back().back() += 1; }),
                  differs("batches differ"));
      EXPECT_THAT(changed([](Record& r) { r.list.back().pop_back(); }),
                  differs("batches differ"));
    } else if (record.num_batches > 0) {
      EXPECT_THAT(changed([](Record& r) { r.num_batches += 1; }),
                  differs("hash differs"));
      EXPECT_THAT(changed([](Record& r) { r.count += 1; }),
                  differs("hash differs"));
      EXPECT_THAT(changed([](Record& r) { r.hash += 1; }),
                  differs("hash differs"));
    }
  }
}

// An epoch that moves on in the wrong way, and a batch that ends elsewhere.
TEST(PaddleSamplerGoldenTest, CheckRejectsAnotherIterationAndBatchSize) {
  const absl::StatusOr<Record> record =
      ParseRecord("list 11 2 3 0 1 - 1 0 2,3,4 0,7,0");
  ASSERT_THAT(record, IsOk());
  EXPECT_THAT(CheckRecord(*record), IsOk());
  EXPECT_THAT(CheckChanged(*record, [](Record& r) { r.iteration = 0; }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("differ")));
  EXPECT_THAT(
      CheckChanged(*record, [](Record& r) { r.options.batch_size = 2; }),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("differ")));
}

}  // namespace
}  // namespace lockstep
