// Too little memory as a status.
#ifndef LOCKSTEP_BASE_CATCH_BAD_ALLOC_H_
#define LOCKSTEP_BASE_CATCH_BAD_ALLOC_H_

#include <new>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

// Returns the result of `run`, an absl::Status or absl::StatusOr. Returns
// kResourceExhausted with the message `what` if `run` found too little memory,
// or could not start a thread.
template <typename Run>
auto CatchBadAlloc(const Run& run,
                   const std::string& what = "not enough memory")
    -> decltype(run()) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(what);
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", error.what()));
  }
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_CATCH_BAD_ALLOC_H_
