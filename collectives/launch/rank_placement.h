// Decides what each rank gets of the host: cores, GPUs, threads.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PLACEMENT_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PLACEMENT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/subprocess.h"

namespace lockstep {

// A hardware thread. The kernel calls it a CPU, and binds processes to it.
struct Cpu {
  int number = 0;
  int package = 0;  // The socket.
  int core = 0;     // The lowest number of the hardware threads of its core.
};

// Returns the CPUs that this thread may use, from sched_getaffinity() and
// /sys/devices/system/cpu. If the latter is missing, every CPU counts as a
// core.
std::vector<Cpu> ReadUsableCpus();

// The CPUs of one rank.
struct CoreShare {
  std::vector<int> cpus;  // CPU numbers, ascending.
  int cores = 0;          // How many cores these are: threads to compute with.

  friend bool operator==(const CoreShare&, const CoreShare&) = default;
};

// Divides `cpus` into one share per rank, in rank order. Shares are disjoint
// and of equal size, since the ranks of a group wait for the slowest; CPUs that
// are left over are not used. A share is contiguous in the order of packages,
// cores and hardware threads, so that it crosses as few sockets as possible.
// The hardware threads of a core stay together unless there are more ranks than
// cores. In that case each hardware thread counts as a core. If there are more
// ranks than CPUs, each rank gets one CPU, and ranks share CPUs in turn.
//
// cpus: at least one. ranks: at least 1.
std::vector<CoreShare> ShareCores(std::vector<Cpu> cpus, int ranks);

// The largest number of ranks on one host. It is far above the cores of any
// host, so that a larger number is a typing error.
inline constexpr int kMostRanksOnHost = 4096;

struct PlacementOptions {
  // 0: the ranks see the GPUs that this process sees, as under torchrun, and a
  // program takes GPU number LOCAL_RANK. Otherwise each rank sees only this
  // many GPUs, as numbers 0, 1, ...: see AssignGpus().
  int gpus_per_rank = 0;
  bool share_gpus = false;  // Whether several ranks may have one GPU.
  // Whether each rank runs on cores of its own: see ShareCores(). Off by
  // default, since two runs on one host would be bound to the same cores.
  bool bind_cores = false;
};

// Returns the value of CUDA_VISIBLE_DEVICES for each rank: rank r gets the N =
// gpus_per_rank entries from r N on. If the ranks need more GPUs than there are
// and share_gpus is set, entry numbers count modulo the number of GPUs.
//
// options: gpus_per_rank at least 1.
// visible: this process's own CUDA_VISIBLE_DEVICES, numbers or names such as
//   GPU-8932f937 and MIG-.... Ranks get some of its entries, unchanged. nullopt
//   if the variable is not set, which means all GPUs.
// gpus_on_host: the number of GPUs of the host; used only if `visible` is
//   nullopt.
//
// Errors: kInvalidArgument, naming CUDA_VISIBLE_DEVICES and its value, if an
// entry is neither a number nor a name, if an entry comes twice, or if there
// are too few GPUs.
absl::StatusOr<std::vector<std::string>> AssignGpus(
    int ranks, const PlacementOptions& options,
    const std::optional<std::string>& visible, int gpus_on_host);

// Returns how many GPUs a program started here sees: the entries of
// CUDA_VISIBLE_DEVICES, or all GPUs of this host if the variable is not set.
// Errors: kInvalidArgument if the variable cannot be parsed.
absl::StatusOr<int> CountVisibleGpus();

struct RankPlacement {
  Environment environment;  // OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES.
  std::vector<int> cpus;    // The CPUs to bind to; empty: not bound.
};

// Returns the placement of each of `ranks` ranks on this host. OMP_NUM_THREADS
// is unchanged if it is set. Otherwise it is the number of cores of a bound
// rank, limited by the rank's part of the control group's quota. For ranks that
// are not bound it is 1, as with torchrun.
//
// ranks: 1 to kMostRanksOnHost. Errors: kInvalidArgument, naming the option,
// for a bad option, for too few GPUs, or if CUDA_VISIBLE_DEVICES cannot be
// parsed.
absl::StatusOr<std::vector<RankPlacement>> PlaceRanks(
    int ranks, const PlacementOptions& options);

// Returns one line, without a line end, that lists the cores of the first
// ranks; "" if the ranks are not bound. For example:
//
//   lockstep: bound to cores: rank 0: 0-3; rank 1: 4-7
std::string FormatBinding(const std::vector<RankPlacement>& placements,
                          int first_rank = 0);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PLACEMENT_H_
