// GoogleTest matchers for absl::Status and absl::StatusOr.
//
//   EXPECT_THAT(Open(path), IsOk());
//   EXPECT_THAT(Open(path), StatusIs(absl::StatusCode::kNotFound,
//                                    HasSubstr(path)));
//   EXPECT_THAT(ParseCount("7"), IsOkAndHolds(7));
//
// There is no matcher for "any error": a test must name the error that it
// expects.
#ifndef LOCKSTEP_BASE_STATUS_MATCHERS_H_
#define LOCKSTEP_BASE_STATUS_MATCHERS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"

namespace lockstep {
namespace status_matchers_internal {

inline const absl::Status& GetStatus(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

}  // namespace status_matchers_internal

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  const absl::Status& status = status_matchers_internal::GetStatus(arg);
  *result_listener << status.ToString();
  return status.ok();
}

MATCHER_P2(StatusIs, code, message_matcher,
           std::string(negation ? "is not " : "is ") +
               absl::StatusCodeToString(code) + " with a message that " +
               testing::DescribeMatcher<std::string>(message_matcher)) {
  const absl::Status& status = status_matchers_internal::GetStatus(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         testing::ExplainMatchResult(
             message_matcher, std::string(status.message()), result_listener);
}

MATCHER_P(IsOkAndHolds, value_matcher,
          negation ? "is not OK or differs" : "is OK and holds") {
  if (!arg.ok()) {
    *result_listener << arg.status().ToString();
    return false;
  }
  return testing::ExplainMatchResult(value_matcher, *arg, result_listener);
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_STATUS_MATCHERS_H_
