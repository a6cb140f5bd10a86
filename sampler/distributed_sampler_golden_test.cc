// DistributedSampler against lists that PyTorch's own class drew; see
// testdata/make_golden.py, which also describes the file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
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

namespace lockstep {
namespace {

using ::testing::HasSubstr;

struct Record {
  std::string line;
  DistributedSamplerOptions options;
  int64_t epoch = 0;
  bool hashed = false;
  int64_t count = 0;
  uint64_t hash = 0;
  std::vector<int64_t> indices;  // All, or the first and the last three.
};

absl::StatusOr<Record> ParseRecord(const std::string& line) {
  Record record;
  record.line = line;
  std::istringstream in(line);
  std::string kind, seed;
  in >> kind >> record.options.dataset_size >> record.options.world_size >>
      record.options.drop_last >> record.options.shuffle >> seed >>
      record.epoch >> record.options.rank;
  record.hashed = kind == "hash";
  if (record.hashed) in >> record.count >> record.hash;
  uint64_t wide_seed = 0;  // PyTorch takes seeds above the range of int64.
  if (absl::SimpleAtoi(seed, &wide_seed)) {
    record.options.seed = static_cast<int64_t>(wide_seed);
  } else if (!absl::SimpleAtoi(seed, &record.options.seed)) {
    return absl::DataLossError(absl::StrCat("bad seed: ", line));
  }
  if (!in || (kind != "hash" && kind != "list")) {
    return absl::DataLossError(absl::StrCat("bad record: ", line));
  }
  for (int64_t index = 0; in >> index;) record.indices.push_back(index);
  return record;
}

std::vector<Record> ReadRecords() {
  std::vector<Record> records;
  const char* const root = std::getenv("TEST_SRCDIR");
  const char* const workspace = std::getenv("TEST_WORKSPACE");
  if (root == nullptr || workspace == nullptr) return records;
  std::ifstream file(
      absl::StrCat(root, "/", workspace, "/sampler/testdata/torch_golden.txt"));
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const absl::StatusOr<Record> record = ParseRecord(line);
    EXPECT_THAT(record, IsOk());
    if (record.ok()) records.push_back(*record);
  }
  return records;
}

uint64_t HashOf(const std::vector<int64_t>& indices) {
  uint64_t hash = 0;
  for (const int64_t index : indices) {
    hash = hash * 6364136223846793005u + static_cast<uint64_t>(index) + 1;
  }
  return hash;
}

absl::Status CheckRecord(const Record& record) {
  absl::StatusOr<DistributedSampler> sampler =
      DistributedSampler::Create(record.options);
  if (record.indices.empty() && absl::IsInvalidArgument(sampler.status())) {
    return absl::OkStatus();  // PyTorch draws nothing; we say so at once.
  }
  LOCKSTEP_RETURN_IF_ERROR(sampler.status());
  sampler->SetEpoch(record.epoch);
  std::vector<int64_t> indices = sampler->Indices();
  if (record.hashed) {
    if (static_cast<int64_t>(indices.size()) != record.count ||
        HashOf(indices) != record.hash) {
      return absl::DataLossError(absl::StrCat("hash differs: ", record.line));
    }
    // The same ends as the script keeps, which overlap in short lists.
    std::vector<int64_t> ends(
        indices.begin(), indices.begin() + std::min<size_t>(3, indices.size()));
    ends.insert(ends.end(), indices.end() - std::min<size_t>(3, indices.size()),
                indices.end());
    indices = ends;
  }
  if (indices != record.indices) {
    return absl::DataLossError(absl::StrCat("indices differ: ", record.line));
  }
  return absl::OkStatus();
}

TEST(DistributedSamplerGoldenTest, DrawsWhatPyTorchDraws) {
  const std::vector<Record> records = ReadRecords();
  EXPECT_EQ(records.size(), 4637u);  // A shortened file must not pass.
  for (const Record& record : records) EXPECT_THAT(CheckRecord(record), IsOk());
}

TEST(DistributedSamplerGoldenTest, CheckRejectsAChangedRecord) {
  const auto differs = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
  };
  int listed = 0, hashed = 0;
  for (Record record : ReadRecords()) {
    if (record.indices.empty()) continue;
    ++(record.hashed ? hashed : listed);
    record.indices.back() += 1;
    EXPECT_THAT(CheckRecord(record), differs("indices differ"));
    record.hash += 1;
    if (record.hashed) {
      EXPECT_THAT(CheckRecord(record), differs("hash differs"));
    }
  }
  EXPECT_GT(listed, 0);
  EXPECT_GT(hashed, 0);
}

}  // namespace
}  // namespace lockstep
