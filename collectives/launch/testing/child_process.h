// Real processes for tests of the launcher: started, watched and counted, every
// wait with a deadline.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_TESTING_CHILD_PROCESS_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_TESTING_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/files.h"

namespace lockstep {

// Longer than anything here takes on a busy machine: reaching it is a failure.
inline constexpr absl::Duration kTestDeadline = absl::Seconds(20);

// Waits for the end of any process, which may not be reaped yet; false at the
// deadline.
bool AwaitEnd(pid_t pid, absl::Duration deadline = kTestDeadline);

// A child of the test with its output on two pipes. Its environment, and so
// that of all its descendants, holds a mark by which they can be found.
// Destruction kills every process that carries the mark.
class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> argv,
                        std::vector<std::string> environment = {});
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  pid_t pid() const { return pid_; }

  // The next line of standard output, without its end; nullopt at the end of
  // the output or the deadline.
  std::optional<std::string> ReadLine();
  void CloseOutput() { out_.Close(); }

  // Waits for the end of the child, then reads what is left. Returns its exit
  // status, or 128 + signal; -1 at the deadline.
  int Wait(absl::Duration deadline = kTestDeadline);
  const std::string& out() const { return out_text_; }  // Not read as lines.
  const std::string& err() const { return err_text_; }

  // The live processes that carry the mark, the child included.
  std::vector<pid_t> Marked() const;

  // Looks at Marked() until `done` says true of their number; false at the
  // deadline.
  bool AwaitMarked(absl::FunctionRef<bool(int count)> done,
                   absl::Duration deadline = kTestDeadline) const;

 private:
  const std::string mark_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  OwnedFd out_;
  OwnedFd err_;
  std::string out_text_;
  std::string err_text_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_TESTING_CHILD_PROCESS_H_
