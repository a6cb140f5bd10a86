// Where a report's numbers come from: the machine, the commit, the time.
#ifndef LOCKSTEP_REPORT_MACHINE_H_
#define LOCKSTEP_REPORT_MACHINE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

struct Machine {
  std::string cpu = {};      // The model's name, or "unknown CPU".
  int cores = 1;             // That this process may use.
  int64_t memory_bytes = 0;  // Of the machine; 0 if unknown.
  std::string system = {};   // "Linux 6.1.0".
};

Machine DescribeMachine();

// "Example 9000, 2 cores, 16 GiB, Linux 6.1".
std::string MachineText(const Machine& machine);

// The model name in the text of /proc/cpuinfo, or "unknown CPU".
std::string CpuModel(absl::string_view cpuinfo);

// The commit that is checked out in the git work tree at `folder`, read from
// its .git folder; empty if that cannot be told.
std::string CheckedOutCommit(const std::string& folder);

// The commit that `bazel run` built, as CheckedOutCommit gives it; empty for a
// program that was started in another way.
std::string CommitText();

// The current time in UTC, as "2024-05-31T16:20:00Z".
std::string TimeStamp();

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_MACHINE_H_
