// Which cores each rank of a host gets to itself.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_CORE_BINDING_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_CORE_BINDING_H_

#include <string>
#include <vector>

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

// "0-3,8": the numbers, ascending, as the kernel writes lists of CPUs.
std::string FormatCpus(const std::vector<int>& cpus);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_CORE_BINDING_H_
