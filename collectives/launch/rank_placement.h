// What each rank gets of the host: cores, GPUs, threads.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PLACEMENT_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PLACEMENT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/subprocess.h"

namespace lockstep {

// A hardware thread: what the kernel calls a CPU, and binds to.
struct Cpu {
  int number = 0;
  int package = 0;  // The socket.
  int core = 0;     // The lowest number of the hardware threads of its core.
};

// The CPUs that this thread may use, as sched_getaffinity() and
// /sys/devices/system/cpu have them. Where the latter is missing every CPU is
// taken for a core.
std::vector<Cpu> ReadUsableCpus();

// What one rank gets.
struct CoreShare {
  std::vector<int> cpus;  // Numbers, ascending.
  int cores = 0;          // How many cores these are: threads to compute with.

  friend bool operator==(const CoreShare&, const CoreShare&) = default;
};

// Cuts `cpus` into one share per rank, in rank order. Shares are disjoint and
// of equal size, since the ranks of a group wait for the slowest; what is left
// over is nobody's. A share is contiguous in the order of packages, cores and
// hardware threads, so that it crosses as few sockets as can be. The hardware
// threads of a core stay together unless there are more ranks than cores; then
// a core counts for each of them. If there are more ranks than CPUs they take
// turns, and have one each.
//
// cpus: at least one. ranks: at least 1.
std::vector<CoreShare> ShareCores(std::vector<Cpu> cpus, int ranks);

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

// The value of CUDA_VISIBLE_DEVICES for each rank: rank r gets the N =
// gpus_per_rank entries from r N on. If that is more than there are and
// share_gpus, the ranks take turns: entries count modulo the number of GPUs.
//
// options: gpus_per_rank at least 1.
// visible: this process's own CUDA_VISIBLE_DEVICES, numbers or names such as
//   GPU-8932f937 and MIG-..., of which ranks get a part as they are written;
//   nullopt if it is not set, which means all GPUs.
// gpus_on_host: how many there are; used only for the latter.
//
// Errors: kInvalidArgument, naming CUDA_VISIBLE_DEVICES and its value, for an
// entry that is neither, for one that comes twice, and for too few GPUs.
absl::StatusOr<std::vector<std::string>> AssignGpus(
    int ranks, const PlacementOptions& options,
    const std::optional<std::string>& visible, int gpus_on_host);

// How many GPUs a program started here sees: the entries of
// CUDA_VISIBLE_DEVICES, or all of this host's if that is not set. Error:
// kInvalidArgument if the variable is not understood.
absl::StatusOr<int> CountVisibleGpus();

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
std::string FormatBinding(const std::vector<RankPlacement>& placements,
                          int first_rank = 0);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PLACEMENT_H_
