// NumpyShuffle against lists that numpy shuffled; see
// testdata/make_numpy_golden.py, which also describes the file.
#include "sampler/numpy_shuffle.h"

#include <cstdint>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/golden_file.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> Shuffled(uint32_t seed, int64_t n) {
  std::vector<int32_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  NumpyShuffle(seed, values);
  return values;
}

struct Record {
  uint32_t seed = 0;
  int64_t size = 0;
  GoldenList list;
};

absl::StatusOr<Record> ParseRecord(const std::string& line) {
  Record record;
  std::istringstream in(line);
  std::string kind;
  in >> kind >> record.seed >> record.size;
  LOCKSTEP_ASSIGN_OR_RETURN(record.list, ParseGoldenList(kind, in));
  return record;
}

absl::StatusOr<std::vector<Record>> ReadRecords() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                            ReadGoldenLines("numpy_golden.txt"));
  std::vector<Record> records;
  for (const std::string& line : lines) {
    LOCKSTEP_ASSIGN_OR_RETURN(records.emplace_back(), ParseRecord(line));
  }
  return records;
}

absl::Status CheckRecord(const Record& record) {
  const std::vector<int32_t> values = Shuffled(record.seed, record.size);
  return CheckGoldenList(record.list, {values.begin(), values.end()});
}

TEST(NumpyShuffleTest, ShufflesAsNumpyDoes) {
  const absl::StatusOr<std::vector<Record>> records = ReadRecords();
  ASSERT_THAT(records, IsOk());
  EXPECT_EQ(records->size(), 374u);  // A shortened file must not pass.
  for (const Record& record : *records) {
    EXPECT_THAT(CheckRecord(record), IsOk())
        << "seed " << record.seed << " size " << record.size;
  }
}

TEST(NumpyShuffleTest, CheckRejectsAChangedRecord) {
  const absl::StatusOr<std::vector<Record>> records = ReadRecords();
  ASSERT_THAT(records, IsOk());
  for (Record record : *records) {
    record.list.items.back() += 1;
    EXPECT_THAT(CheckRecord(record), StatusIs(absl::StatusCode::kDataLoss,
                                              HasSubstr("items differ")));
    if (!record.list.hashed) continue;
    record.list.hash += 1;
    EXPECT_THAT(CheckRecord(record), StatusIs(absl::StatusCode::kDataLoss,
                                              HasSubstr("hash differs")));
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

}  // namespace
}  // namespace lockstep
