// The tables of claims and rows agree.
#include "conformance/report/expected_rows.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "conformance/report/known_claims.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::IsEmpty;
using testing::Not;

TEST(KnownClaimsTest, AreNamedOnceAndSaySomething) {
  std::vector<std::string> names;
  for (const KnownClaim& claim : KnownClaims()) {
    EXPECT_THAT(names, Not(testing::Contains(claim.name)));
    names.push_back(claim.name);
    EXPECT_THAT(std::string(claim.says), testing::EndsWith("."));
    EXPECT_THAT(std::string(claim.allowed), Not(IsEmpty()));
    EXPECT_THAT(std::string(claim.test), testing::StartsWith("//conformance"));
    EXPECT_EQ(claim.exact, std::string(claim.allowed).starts_with("none"));
  }
}

// Each known claim has a row, or it would be left out when it is not run.
TEST(ExpectedRowsTest, AreOfKnownClaims) {
  std::set<std::string> expected, known;
  for (const ExpectedRow& row : ExpectedRows()) {
    expected.insert(row.claim);
    EXPECT_THAT(row.backend, Not(IsEmpty()));
    EXPECT_THAT(row.test, testing::StartsWith("//"));
    EXPECT_EQ(row.types.empty(), !row.gpu_asks.empty());
    EXPECT_EQ(row.world_sizes.empty(), !row.gpu_asks.empty());
  }
  for (const KnownClaim& claim : KnownClaims()) known.insert(claim.name);
  EXPECT_EQ(expected, known);
}

TEST(ExpectedRowsTest, HaveEachCellOfATestOnce) {
  std::set<std::tuple<std::string, std::string, std::string, std::string, int>>
      cells;
  for (const ExpectedRow& row : ExpectedRows()) {
    for (const std::string& type : row.types) {
      for (const int world_size : row.world_sizes) {
        EXPECT_TRUE(
            cells.insert({row.claim, row.backend, row.test, type, world_size})
                .second)
            << row.claim << " on " << row.backend;
      }
    }
  }
}

// The test that a claim names records it.
TEST(ExpectedRowsTest, HaveTheTestOfEachClaim) {
  for (const KnownClaim& claim : KnownClaims()) {
    EXPECT_TRUE(std::any_of(ExpectedRows().begin(), ExpectedRows().end(),
                            [&](const ExpectedRow& row) {
                              return row.claim == claim.name &&
                                     row.test == claim.test;
                            }))
        << claim.name;
  }
}

}  // namespace
}  // namespace lockstep
