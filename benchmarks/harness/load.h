// How much of the cores' time other programs took while a benchmark ran. Beside
// a busy program the figures of a benchmark are those of the machine's load.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_LOAD_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_LOAD_H_

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// Clock ticks of some CPUs since the host started.
struct CpuTicks {
  int64_t total = 0;
  // In programs, or taken by the hypervisor for other machines. Interrupts do
  // not count: most are the benchmark's own, as when Gloo's ranks use TCP.
  int64_t busy = 0;
};

// The sum over the CPUs of these numbers in the text of /proc/stat, whose lines
// are as in proc(5). nullopt if one of them is missing or is not understood.
std::optional<CpuTicks> ParseCpuTicks(absl::string_view text,
                                      std::span<const int> cpus);

// Starts when it is made. Reads the CPUs that this process may use, so it
// should be made before the process binds itself to some of them.
class LoadMeter {
 public:
  // The benchmark is this process with all its descendants.
  LoadMeter() : LoadMeter(std::vector<pid_t>{getpid()}) {}
  // The benchmark is these processes of this host with all their descendants.
  explicit LoadMeter(std::vector<pid_t> roots);

  // The share of the CPUs' time, in [0, 1], that neither the benchmark nor the
  // idle loop had since the start. nullopt if /proc does not say, or if the
  // time was below kShortestLoad seconds, too short for ticks of 10 ms.
  // Cost: reads a file of every process of the host.
  std::optional<double> OthersShare() const;

 private:
  std::vector<pid_t> roots_;
  std::vector<int> cpus_;
  double start_ = 0;
  std::optional<CpuTicks> cpu_ticks_;
  int64_t own_ticks_ = 0;
};

inline constexpr double kShortestLoad = 0.5;

// The share from which a machine is not quiet: a tenth of a core of two.
inline constexpr double kBusyShare = 0.05;

// Adds the share to the document. If the machine was not quiet, a remark says
// so and no bar is judged.
void AddLoad(std::optional<double> others_share, report::Document& document);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_LOAD_H_
