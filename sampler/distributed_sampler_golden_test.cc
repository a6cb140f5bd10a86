// DistributedSampler against lists that PyTorch's own class drew; see
// testdata/make_golden.py, which also describes the file.
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/distributed_sampler.h"
#include "sampler/golden_file.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

struct Record {
  std::string line;
  DistributedSamplerOptions options;
  int64_t epoch = 0;
  GoldenList list;
};

absl::StatusOr<Record> ParseRecord(const std::string& line) {
  Record record;
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

absl::StatusOr<std::vector<Record>> ReadRecords() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                            ReadGoldenLines("torch_golden.txt"));
  std::vector<Record> records;
  for (const std::string& line : lines) {
    LOCKSTEP_ASSIGN_OR_RETURN(records.emplace_back(), ParseRecord(line));
  }
  return records;
}

absl::Status CheckRecord(const Record& record) {
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
  const absl::StatusOr<std::vector<Record>> records = ReadRecords();
  ASSERT_THAT(records, IsOk());
  EXPECT_EQ(records->size(), 4637u);  // A shortened file must not pass.
  for (const Record& record : *records) {
    EXPECT_THAT(CheckRecord(record), IsOk()) << record.line;
  }
}

TEST(DistributedSamplerGoldenTest, CheckRejectsAChangedRecord) {
  const absl::StatusOr<std::vector<Record>> records = ReadRecords();
  ASSERT_THAT(records, IsOk());
  const auto differs = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
  };
  int listed = 0, hashed = 0;
  for (Record record : *records) {
    if (record.list.items.empty()) continue;
    ++(record.list.hashed ? hashed : listed);
    record.list.items.back() += 1;
    EXPECT_THAT(CheckRecord(record), differs("items differ"));
    record.list.hash += 1;
    if (record.list.hashed) {
      EXPECT_THAT(CheckRecord(record), differs("hash differs"));
    }
  }
  EXPECT_GT(listed, 0);
  EXPECT_GT(hashed, 0);
}

}  // namespace
}  // namespace lockstep
