// Properties of the test that is running.
#include "conformance/report/claim_recorder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "conformance/report/claim_result.h"
#include "conformance/report/known_claims.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

bool IsKnown(const std::string& name) {
  const auto& claims = KnownClaims();
  return std::any_of(
      claims.begin(), claims.end(),
      [&](const KnownClaim& claim) { return claim.name == name; });
}

// No two properties of a test have the same name.
std::string NextProperty() {
  static std::atomic<int64_t> next{0};
  return absl::StrCat(kClaimProperty, next.fetch_add(1));
}

}  // namespace

ClaimRecorder::ClaimRecorder(const ClaimSubject& subject) {
  result_.claim = subject.claim;
  result_.backend = subject.backend;
  result_.world_size = subject.world_size;
  result_.type = subject.type;
  EXPECT_TRUE(IsKnown(subject.claim))
      << subject.claim << " is not in known_claims.cc";
}

ClaimRecorder::~ClaimRecorder() {
  if (!testing::Test::HasFailure() && !testing::Test::IsSkipped()) {
    EXPECT_GT(result_.cases, 0)
        << "nothing was measured of the claim " << result_.claim;
  }
  result_.exact = !measured_;
  testing::Test::RecordProperty(NextProperty(), FormatClaimResult(result_));
}

void ClaimRecorder::Measure(double error_over_allowed) {
  measured_ = true;
  ++result_.cases;
  const double error = std::isnan(error_over_allowed)
                           ? std::numeric_limits<double>::infinity()
                           : error_over_allowed;
  result_.error_over_allowed = std::max(result_.error_over_allowed, error);
}

void ClaimRecorder::AddExact(int64_t cases) { result_.cases += cases; }

}  // namespace lockstep
