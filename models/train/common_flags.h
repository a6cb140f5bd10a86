// The functions that the commands of this folder share. They check flags and
// handle too little memory.
#ifndef LOCKSTEP_MODELS_TRAIN_COMMON_FLAGS_H_
#define LOCKSTEP_MODELS_TRAIN_COMMON_FLAGS_H_

#include <new>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "models/cpu/algorithm.h"

namespace lockstep {

// Returns the result of `run`, or kResourceExhausted if `run` found too little
// memory.
template <typename Run>
auto CatchBadAlloc(const Run& run) -> decltype(run()) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("not enough memory");
  } catch (const std::system_error& error) {  // No thread could be started.
    return absl::ResourceExhaustedError(
        absl::StrCat("not enough memory: ", error.what()));
  }
}

// Chooses the algorithm from --convolution and --deterministic_across_machines.
// Errors, in one line that names the flag: an unknown name; Winograd, if oneDNN
// lacks it on this machine; flags that contradict each other.
absl::StatusOr<ConvolutionAlgorithm> ChooseConvolution(absl::string_view text,
                                                       bool deterministic);

// Checks the flags that both commands have. Errors: kInvalidArgument, beginning
// with the flag, for an unknown model, for `sync_bn` with a model without batch
// norm, and for a number out of its range.
absl::Status CheckCommonFlags(absl::string_view model, bool sync_bn, int nproc,
                              int threads_per_rank, double timeout_s);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_COMMON_FLAGS_H_
