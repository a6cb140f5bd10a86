// Records are read as written, and bad ones are refused.
#include "sampler/golden_file.h"

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

absl::StatusOr<GoldenList> Parse(const std::string& kind,
                                 const std::string& rest) {
  std::istringstream in(rest);
  return ParseGoldenList(kind, in);
}

auto DataLoss(const std::string& what) {
  return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
}

TEST(GoldenFileTest, LeavesOutCommentsAndEmptyLines) {
  const absl::StatusOr<std::vector<std::string>> lines =
      ReadGoldenLines("numpy_golden.txt");
  ASSERT_THAT(lines, IsOk());
  EXPECT_FALSE(lines->empty());
  EXPECT_THAT(*lines, Each(Not(StartsWith("#"))));
}

TEST(GoldenFileTest, AMissingFileIsNotFound) {
  EXPECT_THAT(ReadGoldenLines("absent.txt"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent.txt")));
}

TEST(GoldenFileTest, ParsesListsAndHashes) {
  const absl::StatusOr<GoldenList> list = Parse("list", "3 1 2");
  ASSERT_THAT(list, IsOk());
  EXPECT_FALSE(list->hashed);
  EXPECT_THAT(list->items, ElementsAre(3, 1, 2));

  const absl::StatusOr<GoldenList> hash = Parse("hash", "2 77 5 6 5 6");
  ASSERT_THAT(hash, IsOk());
  EXPECT_TRUE(hash->hashed);
  EXPECT_EQ(hash->count, 2);
  EXPECT_EQ(hash->hash, 77u);
  EXPECT_THAT(hash->items, ElementsAre(5, 6, 5, 6));
}

TEST(GoldenFileTest, RefusesBadRecords) {
  EXPECT_THAT(Parse("lost", "1 2"), DataLoss("bad or short record: lost"));
  EXPECT_THAT(Parse("hash", "3"), DataLoss("bad or short record: hash"));
  EXPECT_THAT(Parse("list", "1 two 3"), DataLoss("not a number"));
}

TEST(GoldenFileTest, ComparesLists) {
  const GoldenList list{.items = {4, 5}};
  EXPECT_THAT(CheckGoldenList(list, {4, 5}), IsOk());
  EXPECT_THAT(CheckGoldenList(list, {5, 4}), DataLoss("items differ"));
  EXPECT_THAT(CheckGoldenList(list, {4}), DataLoss("items differ"));
}

TEST(GoldenFileTest, ComparesHashes) {
  const std::vector<int64_t> items = {9, 8, 7, 6, 5, 4, 3};
  uint64_t hash = 0;
  for (const int64_t item : items) {
    hash = GoldenHashStep(hash, static_cast<uint64_t>(item) + 1);
  }
  const GoldenList golden{
      .hashed = true, .count = 7, .hash = hash, .items = {9, 8, 7, 5, 4, 3}};
  EXPECT_THAT(CheckGoldenList(golden, items), IsOk());
  EXPECT_THAT(CheckGoldenList(golden, {9, 8, 7, 0, 5, 4, 3}),
              DataLoss("hash differs"));
  EXPECT_THAT(CheckGoldenList(golden, {9, 8, 7, 5, 4, 3}),
              DataLoss("hash differs"));
}

}  // namespace
}  // namespace lockstep
