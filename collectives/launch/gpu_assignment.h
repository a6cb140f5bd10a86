// Which GPUs each rank of a host gets to see.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_GPU_ASSIGNMENT_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_GPU_ASSIGNMENT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

struct GpuRequest {
  int ranks = 1;
  int gpus_per_rank = 1;  // At least 1.
  bool share = false;  // Let several ranks have one GPU if there are too few.
};

// The value of CUDA_VISIBLE_DEVICES for each rank: rank r gets the N =
// gpus_per_rank entries from r N on. If that is more than there are and
// request.share, the ranks take turns: entries count modulo the number of GPUs.
//
// visible: this process's own CUDA_VISIBLE_DEVICES, numbers or names such as
//   GPU-8932f937 and MIG-..., of which ranks get a part as they are written;
//   nullopt if it is not set, which means all GPUs.
// gpus_on_host: how many there are; used only for the latter.
//
// Errors: kInvalidArgument, naming CUDA_VISIBLE_DEVICES and its value, for an
// entry that is neither, for one that comes twice, and for too few GPUs.
absl::StatusOr<std::vector<std::string>> AssignGpus(
    const GpuRequest& request, const std::optional<std::string>& visible,
    int gpus_on_host);

// How many GPUs of NVIDIA this host shows to this process: its /dev/nvidia<n>.
int GpusOnHost();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_GPU_ASSIGNMENT_H_
