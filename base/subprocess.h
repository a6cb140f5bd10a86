// Child processes. All code of this project that starts a program, exchanges
// text with it, waits for it or ends it uses this header. The exception is
// collectives/launch, which starts the ranks of a run and has more options for
// them.
#ifndef LOCKSTEP_BASE_SUBPROCESS_H_
#define LOCKSTEP_BASE_SUBPROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"

namespace lockstep {

// Variables that are set for a process in addition to those that it inherits.
using Environment = std::vector<std::pair<std::string, std::string>>;

// Returns this process's environment, as "NAME=value", without the variables
// named in `without`, and then with `changes`. If two changes name one
// variable, the later one wins.
std::vector<std::string> MergedEnvironment(
    const Environment& changes, const std::vector<std::string>& without = {});

// Returns pointers to the strings as exec() takes them, with a null pointer at
// the end. The pointers borrow from `strings`.
std::vector<char*> ExecPointers(const std::vector<std::string>& strings);

struct SubprocessOptions {
  Environment environment = {};
  std::vector<std::string> unset = {};  // Variables that are not inherited.
  // Whether WriteLine may be called. If false, standard input is /dev/null.
  bool writes_input = false;
  bool merge_error = false;  // Standard error goes to the output, too.
  // The signal that the process gets when the thread that started it ends.
  int parent_death_signal = SIGKILL;
};

// A child process in its own process group. The destructor kills the whole
// group, so programs that the child has started end too, unless they have moved
// to another group. Not thread safe.
//
// The child's output is read only while a method waits. If the child writes
// more than a pipe holds, it blocks until the next such call.
class Subprocess {
 public:
  // Starts a program. argv: the program, looked up as the shell does, and its
  // arguments. If the program cannot be run, the child prints "cannot run it:
  // ..." to its standard error and exits with status 127. Errors: the system's,
  // if processes or descriptors run out.
  static absl::StatusOr<Subprocess> Start(
      const std::vector<std::string>& argv,
      const SubprocessOptions& options = {});

  Subprocess(Subprocess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        exit_status_(other.exit_status_),
        input_(std::move(other.input_)),
        out_(std::move(other.out_)),
        err_(std::move(other.err_)) {}
  Subprocess& operator=(Subprocess&&) = delete;
  ~Subprocess() { End(); }

  pid_t pid() const { return pid_; }

  // Writes the line and a line end to the program's standard input. Blocks
  // while the program does not read. Errors: kUnavailable if the program can no
  // longer read.
  absl::Status WriteLine(absl::string_view line);

  // Waits for the next line, removes it from out() and returns it without its
  // line end. Errors: kDeadlineExceeded after the timeout; kOutOfRange at the
  // end of the output.
  absl::StatusOr<std::string> ReadLine(absl::Duration timeout);

  // Waits until out() contains `text`. Returns false if the output ends or the
  // timeout passes first.
  bool AwaitOutput(absl::string_view text, absl::Duration timeout);

  // Stops reading the program's standard output. If the program continues to
  // write, it gets SIGPIPE or EPIPE.
  void CloseOutput() { out_.file.Close(); }

  // Waits until the process has ended and its output has ended. Programs that
  // it has started may hold the output open. Returns the exit status, or 128 +
  // N if signal N ended the process. If the timeout passes first, returns
  // kStillRunning and leaves the process running.
  static constexpr int kStillRunning = -1;
  int Wait(absl::Duration timeout);

  // Kills the process group, even if the process itself has ended, and waits
  // for the process. Returns its exit status as Wait does. A second call has no
  // effect and returns the same status.
  int End();

  // The text that was read so far and was not returned as a line.
  const std::string& out() const { return out_.text; }
  const std::string& err() const { return err_.text; }

 private:
  struct Stream {
    OwnedFd file;
    std::string text = {};
  };

  Subprocess(pid_t pid, OwnedFd input, Stream out, Stream err)
      : pid_(pid),
        input_(std::move(input)),
        out_(std::move(out)),
        err_(std::move(err)) {}

  // Waits until there is something to read, and reads it. If the output has
  // ended, waits a moment instead. Returns false once the deadline has passed,
  // after a last look.
  bool ReadMore(const Deadline& deadline);
  // Returns whether the process has ended. An ended process stays a zombie
  // until End().
  bool HasEnded();

  pid_t pid_ = -1;  // -1 once the process was reaped.
  std::optional<int> exit_status_;
  OwnedFd input_;
  Stream out_;
  Stream err_;
};

// Returns "it ended with exit status 3", "signal 9 ended it" or "it did not
// end".
std::string DescribeEnd(int exit_status);

struct SubprocessResult {
  int exit_status = Subprocess::kStillRunning;  // As returned by Wait().
  std::string out;
  std::string err;
};

// Runs a program until it ends; kills it when the timeout passes. An error of
// Start() becomes the result's `err`.
SubprocessResult RunSubprocess(const std::vector<std::string>& argv,
                               absl::Duration timeout,
                               const SubprocessOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_SUBPROCESS_H_
