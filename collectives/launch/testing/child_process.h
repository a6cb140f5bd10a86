// Child processes whose descendants a test can find and count, in whatever
// group or session they are; every wait has a deadline.
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

// Longer than anything here takes on a busy machine: reaching it is a failure.
inline constexpr absl::Duration kTestDeadline = absl::Seconds(20);

// A Subprocess in whose environment, and so in that of all its descendants, is
// a mark by which they can be found. Destruction kills every process that
// carries the mark.
class ChildProcess : public Subprocess {
 public:
  // environment: set besides that of this process.
  explicit ChildProcess(const std::vector<std::string>& argv,
                        const Environment& environment = {});
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  // The next line of standard output, without its end; nullopt at the end of
  // the output or the deadline.
  std::optional<std::string> ReadLine();

  // As Subprocess::Wait.
  int Wait(absl::Duration deadline = kTestDeadline) {
    return Subprocess::Wait(deadline);
  }

  // The live processes that carry the mark, the child included.
  std::vector<pid_t> Marked() const;

  // Looks at Marked() until `done` says true of their number; false at the
  // deadline.
  bool AwaitMarked(absl::FunctionRef<bool(int count)> done,
                   absl::Duration deadline = kTestDeadline) const;

 private:
  ChildProcess(const std::vector<std::string>& argv, Environment environment,
               const std::string& mark);

  const std::string mark_;
};

// The command that starts `nproc` ranks of the program that is put behind it;
// empty if there is none here. Sets HOME for this process and its children if
// it is not set, since Open MPI needs it, and has Open MPI keep the memory that
// ranks share in the test's own folder. Cost: starting the launcher once,
// which for torchrun takes seconds; so keep the result.
std::vector<std::string> FindMpirun(int nproc);  // Open MPI's.
std::vector<std::string> FindTorchrun(int nproc);

// torchrun alone, with a free port for its agent; empty if there is none.
std::vector<std::string> FindTorchrunProgram();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_TESTING_CHILD_PROCESS_H_
