// Starts child processes whose descendants a test can find and count, in
// whatever process group or session they are. Every wait has a deadline.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_TESTING_CHILD_PROCESS_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_TESTING_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/subprocess.h"

namespace lockstep {

// A deadline that is longer than any test here takes on a busy machine.
// Reaching the deadline is a failure.
inline constexpr absl::Duration kTestDeadline = absl::Seconds(20);

// A Subprocess that all its descendants can be found by: a mark in its
// environment, which they inherit. Destruction kills every process that carries
// the mark.
class ChildProcess : public Subprocess {
 public:
  // environment: variables to set in addition to those of this process.
  explicit ChildProcess(const std::vector<std::string>& argv,
                        const Environment& environment = {});
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  // Returns the next line of standard output, without its line end; nullopt at
  // the end of the output or at the deadline.
  std::optional<std::string> ReadLine();

  // Waits for the end of the child; see Subprocess::Wait.
  int Wait(absl::Duration deadline = kTestDeadline) {
    return Subprocess::Wait(deadline);
  }

  // Returns the live processes that carry the mark, including the child.
  std::vector<pid_t> Marked() const;

  // Polls Marked() until `done` returns true for their number; returns false at
  // the deadline.
  bool AwaitMarked(absl::FunctionRef<bool(int count)> done,
                   absl::Duration deadline = kTestDeadline) const;

 private:
  ChildProcess(const std::vector<std::string>& argv, Environment environment,
               const std::string& mark);

  const std::string mark_;
};

// Returns the command prefix that starts `nproc` ranks of a program; empty if
// this machine has no such launcher. Sets HOME for this process and its
// children if it is not set, since Open MPI needs it. Makes Open MPI keep the
// memory that ranks share in the test's own folder. Cost: starts the launcher
// once, which takes seconds for torchrun, so callers should keep the result.
std::vector<std::string> FindMpirun(int nproc);  // Open MPI's.
std::vector<std::string> FindTorchrun(int nproc);

// Returns the command of torchrun without ranks, with a free port for its
// agent; empty if this machine has no torchrun.
std::vector<std::string> FindTorchrunProgram();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_TESTING_CHILD_PROCESS_H_
