// Traces on their way through bytes.
#include "conformance/trace.h"

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(TraceTest, SurvivesTheWayThroughBytes) {
  RankTrace trace;
  trace.parameters = {{1, kNan}, {}};
  trace.gradients = {{-0.0f, 3}};
  trace.samples = {{{0.5f}, {9}}, {}};
  const std::string bytes = SerializeTrace(trace);
  const auto parsed = ParseTrace(bytes);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(SerializeTrace(*parsed), bytes);
  EXPECT_EQ(parsed->samples[0].labels, trace.samples[0].labels);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(ParseTrace(bytes.substr(0, size)),
                StatusIs(StatusCode::kDataLoss, HasSubstr("too early")));
  }
  EXPECT_THAT(ParseTrace(bytes + "x"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("after its end")));
}

}  // namespace
}  // namespace lockstep
