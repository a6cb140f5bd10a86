// What each rank gets of the host: cores, GPUs, threads.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PLACEMENT_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PLACEMENT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/launch/rank_process.h"

namespace lockstep {

// Far more than the cores of any host: a larger number is a slip of the hand.
inline constexpr int kMostRanksOnHost = 4096;

struct PlacementOptions {
  // 0: the ranks see what this process sees, as under torchrun, and a program
  // takes the GPU number LOCAL_RANK. Else each rank sees this many GPUs, as
  // numbers 0, 1, ..., and no others: see AssignGpus().
  int gpus_per_rank = 0;
  bool share_gpus = false;  // Several ranks may have one GPU.
  // Each rank runs on cores of its own: see ShareCores(). Not by default: two
  // runs on one host would be bound to the same cores.
  bool bind_cores = false;
};

struct RankPlacement {
  Environment environment;  // OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES.
  std::vector<int> cpus;    // To be bound to; empty: not bound.
};

// The placement of each of `ranks` ranks on this host. OMP_NUM_THREADS is left
// alone if it is set; else it is the number of cores that a bound rank has (no
// more than its part of the control group's quota), and 1 for ranks that are
// not bound, as torchrun has it.
//
// ranks: 1 to kMostRanksOnHost. Errors: kInvalidArgument, naming the option,
// for a bad one, if there are too few GPUs, or CUDA_VISIBLE_DEVICES is not
// understood.
absl::StatusOr<std::vector<RankPlacement>> PlaceRanks(
    int ranks, const PlacementOptions& options);

// One line, without its end, on the cores that the first ranks are bound to;
// "" if they are not bound. For example:
//
//   lockstep: bound to cores: rank 0: 0-3; rank 1: 4-7
std::string FormatBinding(const std::vector<RankPlacement>& placements);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PLACEMENT_H_
