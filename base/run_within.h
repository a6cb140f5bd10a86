// A limit on the time of a function that cannot be ended.
#ifndef LOCKSTEP_BASE_RUN_WITHIN_H_
#define LOCKSTEP_BASE_RUN_WITHIN_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lockstep {

// Calls `fn` in a thread of its own and returns its status. If `fn` takes
// longer than `timeout`, abandons the thread and returns kDeadlineExceeded.
// `fn` must not refer to memory of the caller, because an abandoned `fn` keeps
// running.
absl::Status RunWithin(absl::Duration timeout,
                       std::function<absl::Status()> fn);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_RUN_WITHIN_H_
