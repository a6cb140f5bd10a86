#include "conformance/report/claim_recorder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "conformance/report/claims.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {

void RecordInXml(const std::string& name, const std::string& value) {
  testing::Test::RecordProperty(name, value);
}

std::string TestConfiguration() {
#ifdef __OPTIMIZE__
  std::string text = "optimised";
#else
  std::string text = "not optimised";
#endif
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  text += ", address sanitizer";
#endif
#ifdef ABSL_HAVE_THREAD_SANITIZER
  text += ", thread sanitizer";
#endif
  const std::string filter = testing::GTEST_FLAG(filter);
  return filter == "*" ? text : absl::StrCat(text, ", ", kFiltered);
}

ClaimRecorder::ClaimRecorder(const ClaimCellId& place, PropertySink sink)
    : sink_(std::move(sink)) {
  result_.claim = place.claim;
  result_.backend = place.backend;
  result_.world_size = place.world_size;
  result_.type = place.type;
  for (const KnownClaim& claim : KnownClaims()) {
    if (claim.name != place.claim) continue;
    known_ = true;
    result_.exact = claim.exact();
  }
  EXPECT_TRUE(known_) << place.claim << " is not in claims.cc";
}

ClaimRecorder::~ClaimRecorder() {
  if (!testing::Test::HasFailure() && !testing::Test::IsSkipped()) {
    EXPECT_GT(result_.cases, 0)
        << "nothing was measured of the claim " << result_.claim;
  }
  // The properties of a test must have different names.
  static std::atomic<int64_t> next{0};
  sink_(absl::StrCat(kClaimProperty, next.fetch_add(1)),
        FormatClaimResult(result_));
  sink_(kConfigurationProperty, TestConfiguration());
}

void ClaimRecorder::ExpectKind(bool exact) {
  if (!known_) return;
  EXPECT_EQ(result_.exact, exact)
      << "the claim " << result_.claim << " allows "
      << (result_.exact ? "no error: AddExact(), not Measure()"
                        : "an error: Measure(), not AddExact()");
}

void ClaimRecorder::Measure(double error_over_allowed) {
  ExpectKind(/*exact=*/false);
  ++result_.cases;
  const double error = std::isnan(error_over_allowed)
                           ? std::numeric_limits<double>::infinity()
                           : error_over_allowed;
  result_.error_over_allowed = std::max(result_.error_over_allowed, error);
}

void ClaimRecorder::AddExact(int64_t cases) {
  ExpectKind(/*exact=*/true);
  result_.cases += cases;
}

}  // namespace lockstep::conformance
