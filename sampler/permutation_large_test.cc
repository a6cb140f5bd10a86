// RandomPermutation against what PyTorch draws around the size from which it
// draws 64 bits an element; see testdata/make_large_golden.py, which also
// describes the file.
#include <cstdint>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/golden_file.h"
#include "sampler/permutation.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

struct Record {
  std::string line;
  int64_t size = 0;
  uint64_t seed = 0;
  uint64_t hash = 0;
  std::vector<int32_t> ends;  // The first and the last three.
};

absl::StatusOr<Record> ParseRecord(const std::string& line) {
  Record record{.line = line, .ends = std::vector<int32_t>(6)};
  std::istringstream in(line);
  std::string kind;
  in >> kind >> record.size >> record.seed >> record.hash;
  for (int32_t& end : record.ends) in >> end;
  if (!in || kind != "hash") return absl::DataLossError("bad record: " + line);
  return record;
}

// The script's hash for large lists: modulo 2^64, a sum of the elements with a
// weight for each position.
uint64_t WeightedSum(std::span<const int32_t> values) {
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t weight = i * 6364136223846793005u;
    weight ^= weight >> 29;
    sum += (static_cast<uint64_t>(values[i]) + 1) * (weight | 1);
  }
  return sum;
}

using ShuffleFn = void (*)(uint64_t, std::span<int32_t>);

absl::Status CheckRecord(const Record& record, ShuffleFn shuffle) {
  // Not a vector, which would be written twice.
  const auto buffer = std::make_unique_for_overwrite<int32_t[]>(record.size);
  const std::span<int32_t> values(buffer.get(), record.size);
  shuffle(record.seed, values);
  std::vector<int32_t> ends(values.begin(), values.begin() + 3);
  ends.insert(ends.end(), values.end() - 3, values.end());
  if (ends != record.ends || WeightedSum(values) != record.hash) {
    return absl::DataLossError("differs: " + record.line);
  }
  return absl::OkStatus();
}

TEST(PermutationLargeTest, DrawsWhatPyTorchDrawsAroundTheWideSize) {
  const absl::StatusOr<std::vector<Record>> records =
      ReadGoldenRecords("torch_large_golden.txt", ParseRecord);
  ASSERT_THAT(records, IsOk());
  std::vector<int64_t> sizes;
  for (const Record& record : *records) {
    sizes.push_back(record.size);
    EXPECT_THAT(CheckRecord(record, RandomPermutation), IsOk());
  }
  EXPECT_THAT(sizes, testing::ElementsAre(kWideDrawSize - 1, kWideDrawSize));
}

TEST(PermutationLargeTest, CheckRejectsTheOtherWidthOfDraws) {
  const absl::StatusOr<std::vector<Record>> records =
      ReadGoldenRecords("torch_large_golden.txt", ParseRecord);
  ASSERT_THAT(records, IsOk());
  ASSERT_EQ(records->at(1).size, kWideDrawSize);
  EXPECT_THAT(
      CheckRecord(records->at(1), permutation_internal::ShuffleByNarrowDraws),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("differs")));
}

TEST(PermutationLargeTest, WeightedSumRejectsAnExchange) {
  std::vector<int32_t> values = {4, 1, 3, 0, 2};
  const uint64_t sum = WeightedSum(values);
  std::swap(values[1], values[3]);
  EXPECT_NE(WeightedSum(values), sum);
}

}  // namespace
}  // namespace lockstep
