// The tables of claims and rows agree; what a recorder says, as the property of
// a test's XML and as the report reads it.
#include "conformance/report/claims.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "base/status_matchers.h"
#include "conformance/report/claim_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "models/io/fuzz_inputs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(KnownClaimsTest, AreNamedOnceAndSaySomething) {
  std::vector<std::string> names;
  for (const KnownClaim& claim : KnownClaims()) {
    EXPECT_THAT(names, Not(testing::Contains(claim.name)));
    names.push_back(claim.name);
    EXPECT_THAT(claim.says, testing::EndsWith("."));
    EXPECT_THAT(claim.allowed, Not(IsEmpty()));
    EXPECT_EQ(claim.exact, claim.allowed.starts_with("none"));
  }
}

// Each known claim has a row, or it would be left out when it is not run; and
// its first row, which readers are sent to, records numbers.
TEST(ExpectedRowsTest, AreOfKnownClaims) {
  for (const KnownClaim& claim : KnownClaims()) {
    ASSERT_THAT(claim.rows, Not(IsEmpty())) << claim.name;
    EXPECT_THAT(claim.rows.front().test, StartsWith("//conformance"));
    for (const ExpectedRow& row : claim.rows) {
      EXPECT_THAT(row.backend, Not(IsEmpty()));
      EXPECT_THAT(row.test, StartsWith("//"));
      EXPECT_EQ(row.types.empty(), !row.gpu_asks.empty());
      EXPECT_EQ(row.world_sizes.empty(), !row.gpu_asks.empty());
    }
  }
}

TEST(ExpectedRowsTest, HaveEachCellOfATestOnce) {
  std::set<std::tuple<std::string, std::string, std::string, std::string, int>>
      cells;
  for (const KnownClaim& claim : KnownClaims()) {
    for (const ExpectedRow& row : claim.rows) {
      for (const std::string& type : row.types) {
        for (const int size : row.world_sizes) {
          EXPECT_TRUE(
              cells.insert({claim.name, row.backend, row.test, type, size})
                  .second)
              << claim.name << " on " << row.backend;
        }
      }
    }
  }
}

class ClaimRecorderTest : public testing::Test {
 protected:
  // Not the XML of this test, which the report reads like any other.
  PropertySink Sink() {
    return [this](const std::string& name, const std::string& value) {
      properties_.emplace_back(name, value);
    };
  }

  // The claim that was recorded last.
  absl::StatusOr<ClaimResult> LastClaim() {
    for (size_t i = properties_.size(); i-- > 0;) {
      if (absl::StartsWith(properties_[i].first, kClaimProperty)) {
        return ParseClaimResult(properties_[i].second);
      }
    }
    return absl::NotFoundError("no claim");
  }

  std::vector<std::pair<std::string, std::string>> properties_;
};

TEST_F(ClaimRecorderTest, KeepsTheLargestErrorOfAllCases) {
  {
    ClaimRecorder recorder({"gradients", "threads", 3, "float32"}, Sink());
    recorder.Measure(0.25);
    recorder.Measure(0.75);
    recorder.Measure(0.5);
  }
  const auto claim = LastClaim();
  ASSERT_THAT(claim, IsOk());
  EXPECT_EQ(claim->claim, "gradients");
  EXPECT_EQ(claim->backend, "threads");
  EXPECT_EQ(claim->world_size, 3);
  EXPECT_EQ(claim->type, "float32");
  EXPECT_EQ(claim->cases, 3);
  EXPECT_EQ(claim->error_over_allowed, 0.75);
  EXPECT_FALSE(claim->exact);
}

TEST_F(ClaimRecorderTest, TellsExactFromMeasured) {
  { ClaimRecorder({"evaluation", "mpi", 1, "float32"}, Sink()).AddExact(7); }
  const auto exact = LastClaim();
  ASSERT_THAT(exact, IsOk());
  EXPECT_TRUE(exact->exact);
  EXPECT_EQ(exact->cases, 7);
  { ClaimRecorder({"gradients", "threads", 1, "float32"}, Sink()).Measure(0); }
  const auto measured = LastClaim();
  ASSERT_THAT(measured, IsOk());
  EXPECT_FALSE(measured->exact);
  EXPECT_EQ(measured->error_over_allowed, 0);
}

TEST_F(ClaimRecorderTest, NanIsAnInfinity) {
  {
    ClaimRecorder recorder({"gradients", "threads", 3, "float32"}, Sink());
    recorder.Measure(std::nan(""));
    recorder.Measure(0.5);
  }
  const auto claim = LastClaim();
  ASSERT_THAT(claim, IsOk());
  EXPECT_EQ(claim->error_over_allowed, std::numeric_limits<double>::infinity());
}

TEST_F(ClaimRecorderTest, ClaimsOfOneTestHaveTheirOwnProperties) {
  {
    ClaimRecorder one({"epochs", "torch", 1, "indices"}, Sink());
    ClaimRecorder other({"epochs", "torch", 1, "indices"}, Sink());
    one.AddExact();
    other.AddExact();
  }
  ASSERT_EQ(properties_.size(), 4u);
  EXPECT_THAT(properties_[0].first, StartsWith(kClaimProperty));
  EXPECT_EQ(properties_[1].first, kConfigurationProperty);
  EXPECT_THAT(properties_[2].first, StartsWith(kClaimProperty));
  EXPECT_NE(properties_[0].first, properties_[2].first);
}

TEST_F(ClaimRecorderTest, AClaimOfWhichNothingIsMeasuredFails) {
  EXPECT_NONFATAL_FAILURE(
      ClaimRecorder({"epochs", "torch", 1, "indices"}, Sink()),
      "nothing was measured of the claim epochs");
}

TEST_F(ClaimRecorderTest, AClaimThatNooneKnowsFails) {
  EXPECT_NONFATAL_FAILURE(
      ClaimRecorder({"immortality", "threads", 1, "float32"}, Sink())
          .AddExact(),
      "immortality is not in claims.cc");
}

TEST_F(ClaimRecorderTest, AClaimOfTheOtherKindFails) {
  EXPECT_NONFATAL_FAILURE(
      ClaimRecorder({"trained_bits", "mpi", 4, "float32"}, Sink()).Measure(0.9),
      "the claim trained_bits allows no error");
  EXPECT_NONFATAL_FAILURE(
      ClaimRecorder({"gradients", "threads", 4, "float32"}, Sink()).AddExact(),
      "the claim gradients allows an error");
}

TEST_F(ClaimRecorderTest, SaysHowTheTestWasBuiltAndRun) {
  { ClaimRecorder({"evaluation", "mpi", 1, "float32"}, Sink()).AddExact(); }
  ASSERT_EQ(properties_.size(), 2u);
  EXPECT_EQ(properties_[1].second, TestConfiguration());
  const std::string filter = testing::GTEST_FLAG(filter);
  testing::GTEST_FLAG(filter) = "*";
  const std::string whole = TestConfiguration();
  testing::GTEST_FLAG(filter) = "ClaimRecorderTest.*";
  EXPECT_EQ(TestConfiguration(), whole + ", filtered");
  testing::GTEST_FLAG(filter) = filter;
#ifdef __OPTIMIZE__
  EXPECT_THAT(whole, StartsWith("optimised"));
#else
  EXPECT_THAT(whole, StartsWith("not optimised"));
#endif
#ifdef __SANITIZE_ADDRESS__
  EXPECT_THAT(whole, HasSubstr("address sanitizer"));
#endif
#ifdef __SANITIZE_THREAD__
  EXPECT_THAT(whole, HasSubstr("thread sanitizer"));
#endif
}

TEST(RecordInXmlTest, IsAPropertyOfTheRunningTest) {
  RecordInXml("no_claim", "a value");
  const testing::TestResult& result =
      *testing::UnitTest::GetInstance()->current_test_info()->result();
  ASSERT_EQ(result.test_property_count(), 1);
  EXPECT_STREQ(result.GetTestProperty(0).key(), "no_claim");
  EXPECT_STREQ(result.GetTestProperty(0).value(), "a value");
}

TEST(ClaimResultTest, SurvivesAnyText) {
  ClaimResult result;
  result.claim = "a\"<b>\n\x01\\";
  result.backend = "\xc3\xa9";
  result.type = "float32, bfloat16";
  result.world_size = 1024;
  result.cases = int64_t{1} << 40;
  result.error_over_allowed = 0x1.23456789abcdep-3;
  const auto back = ParseClaimResult(FormatClaimResult(result));
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->claim, result.claim);
  EXPECT_EQ(back->backend, result.backend);
  EXPECT_EQ(back->type, result.type);
  EXPECT_EQ(back->world_size, result.world_size);
  EXPECT_EQ(back->cases, result.cases);
  EXPECT_EQ(back->error_over_allowed, result.error_over_allowed);
}

TEST(ClaimResultTest, RefusesWhatItDidNotWrite) {
  const std::string good = FormatClaimResult({.claim = "c"});
  ASSERT_THAT(ParseClaimResult(good), IsOk());
  const struct {
    const char* part;
    const char* in_its_place;
    const char* says;
  } kSpoilt[] = {
      {"\"claim\"", "\"klaim\"", "\"claim\""},
      {"\"world_size\":1", "\"world_size\":0", "\"world_size\""},
      {"\"world_size\":1", "\"world_size\":1e300", "\"world_size\""},
      {"\"world_size\":1", "\"world_size\":99999999999", "\"world_size\""},
      {"\"cases\":0", "\"cases\":-1", "\"cases\""},
      {"\"error_over_allowed\":0.0", "\"error_over_allowed\":-1",
       "\"error_over_allowed\""},
      {"\"error_over_allowed\":0.0", "\"error_over_allowed\":\"1\"",
       "\"error_over_allowed\""},
      {"\"exact\":false", "\"exact\":0", "\"exact\""},
      {"}", "", "no JSON object"},
      {"{", "[{", "no JSON object"},
  };
  for (const auto& spoilt : kSpoilt) {
    std::string text = good;
    const size_t at = text.find(spoilt.part);
    ASSERT_NE(at, std::string::npos) << spoilt.part << " in " << good;
    text.replace(at, std::string(spoilt.part).size(), spoilt.in_its_place);
    EXPECT_THAT(
        ParseClaimResult(text),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(spoilt.says)))
        << text;
  }
}

TEST(ClaimResultTest, AnyChangeIsReadOrRefused) {
  const std::vector<std::string> seeds = {
      FormatClaimResult({.claim = "gradients", .cases = 3}),
      FormatClaimResult({.claim = "epochs", .world_size = 8, .exact = true})};
  std::mt19937 random(29);
  int read = 0, refused = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string text = Mutated(seeds, random);
    const auto claim = ParseClaimResult(text);
    if (!claim.ok()) {
      ++refused;
      continue;
    }
    ++read;
    ASSERT_GE(claim->world_size, 1) << text;
    ASSERT_GE(claim->cases, 0) << text;
    ASSERT_GE(claim->error_over_allowed, 0) << text;
  }
  // Both were tried.
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace lockstep
