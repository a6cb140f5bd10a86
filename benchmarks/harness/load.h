// Measures the share of the cores' time that other programs took during a
// benchmark. Beside a busy program a benchmark measures the machine's load.
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

// The clock ticks of some CPUs since the host started.
struct CpuTicks {
  int64_t total = 0;
  // Ticks in programs, or taken by the hypervisor for other machines.
  // Interrupts are not counted, because most are the benchmark's own, as when
  // Gloo's ranks use TCP.
  int64_t busy = 0;
};

// Returns the sum over the given CPUs in the text of /proc/stat, whose lines
// are as in proc(5). Returns nullopt if a CPU is missing or its line is not
// understood.
std::optional<CpuTicks> ParseCpuTicks(absl::string_view text,
                                      std::span<const int> cpus);

// Measures load from its construction on. Reads which CPUs this process may
// use, so it should be made before the process binds itself to some of them.
class LoadMeter {
 public:
  // Measures a benchmark that is this process and all its descendants.
  LoadMeter() : LoadMeter(std::vector<pid_t>{getpid()}) {}
  // Measures a benchmark that is these processes of this host and all their
  // descendants.
  explicit LoadMeter(std::vector<pid_t> roots);

  // Returns the share of the CPUs' time since the start, in [0, 1], that
  // neither the benchmark nor the idle loop used. Returns nullopt if /proc does
  // not say, or if less than kShortestLoad seconds passed, which is too short
  // for ticks of 10 ms. Cost: reads a file of every process of the host.
  std::optional<double> OthersShare() const;

 private:
  std::vector<pid_t> roots_;
  std::vector<int> cpus_;
  double start_ = 0;
  std::optional<CpuTicks> cpu_ticks_;
  int64_t own_ticks_ = 0;
};

inline constexpr double kShortestLoad = 0.5;

// The share from which a machine is not quiet: a tenth of a core on two cores.
inline constexpr double kBusyShare = 0.05;

// Adds the share to the document. If the machine was not quiet, adds a remark,
// and no bar is judged.
void AddLoad(std::optional<double> others_share, report::Document& document);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_LOAD_H_
