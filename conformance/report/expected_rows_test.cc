// The tables of claims and rows agree.
#include "conformance/report/expected_rows.h"

#include <set>
#include <string>
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
  }
}

// Each known claim has a row, or it would be left out when it is not run.
TEST(ExpectedRowsTest, AreOfKnownClaims) {
  std::set<std::string> expected, known;
  for (const ExpectedRow& row : ExpectedRows()) {
    expected.insert(row.claim);
    EXPECT_THAT(row.backend, Not(IsEmpty()));
    EXPECT_THAT(row.test, testing::StartsWith("//"));
  }
  for (const KnownClaim& claim : KnownClaims()) known.insert(claim.name);
  EXPECT_EQ(expected, known);
}

}  // namespace
}  // namespace lockstep
