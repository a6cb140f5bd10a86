// Child processes: the one way in which this project starts a program, talks to
// it, waits for it and ends it. (The ranks of a run are started by
// collectives/launch, which has more to say about them.)
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

// Variables that are set for a process, on top of those it inherits.
using Environment = std::vector<std::pair<std::string, std::string>>;

// This process's environment, as "NAME=value", with `changes` made to it, later
// ones last, and without the variables named in `without`.
std::vector<std::string> MergedEnvironment(
    const Environment& changes, const std::vector<std::string>& without = {});

// The strings as exec() takes them, with a null pointer at the end. Borrowed.
std::vector<char*> ExecPointers(const std::vector<std::string>& strings);

struct SubprocessOptions {
  Environment environment = {};
  std::vector<std::string> unset = {};  // Variables that it does not inherit.
  // Whether WriteLine may be called; else its standard input is /dev/null.
  bool writes_input = false;
  bool merge_error = false;  // Standard error goes where the output goes.
  // What it gets when the thread that started it ends.
  int parent_death_signal = SIGKILL;
};

// A child process in a process group of its own, which ends with this object:
// then the whole group is killed, so that programs that it has started end too,
// unless they have gone to another group. Not thread safe.
//
// Its output is read while a method waits; a program that writes more than a
// pipe takes waits for the next such call.
class Subprocess {
 public:
  // argv: the program, found as the shell finds it, and its arguments. One that
  // cannot be run says "cannot run it: ..." on its standard error and exits
  // with status 127. Errors: the system's for lack of processes or descriptors.
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

  // Writes the line, and a line end, to its standard input. Blocks while the
  // program does not read. Errors: kUnavailable if it never will.
  absl::Status WriteLine(absl::string_view line);

  // Takes the next line from out(), without its line end, once there is one.
  // Errors: kDeadlineExceeded; kOutOfRange at the end of the output.
  absl::StatusOr<std::string> ReadLine(absl::Duration timeout);

  // Returns once out() holds `text`; false if the output ended, or the time was
  // over, before.
  bool AwaitOutput(absl::string_view text, absl::Duration timeout);

  // Reads no more of its standard output: a program that goes on writing gets
  // SIGPIPE or EPIPE.
  void CloseOutput() { out_.file.Close(); }

  // Waits until it has ended, and its output too, which programs that it has
  // started may hold open. Returns the exit status, or 128 + N if signal N
  // ended it; kStillRunning if the time is over first, and then it goes on.
  static constexpr int kStillRunning = -1;
  int Wait(absl::Duration timeout);

  // Kills the process group, unless the process has ended, and waits for the
  // process. Returns its exit status as Wait does. May be called again.
  int End();

  // What was read so far, and not returned as a line.
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

  // Waits until there is something to read, or, where the output has ended, for
  // a moment; and reads.
  // False once the deadline has passed, after a last look.
  bool Await(const Deadline& deadline);
  // Whether the process has ended: it then is a zombie, until End().
  bool HasEnded();

  pid_t pid_ = -1;  // -1 once it was reaped.
  std::optional<int> exit_status_;
  OwnedFd input_;
  Stream out_;
  Stream err_;
};

// "it ended with exit status 3", "signal 9 ended it", "it did not end".
std::string DescribeEnd(int exit_status);

struct SubprocessResult {
  int exit_status = Subprocess::kStillRunning;  // As Wait() gives it.
  std::string out;
  std::string err;
};

// Runs a program until it ends; kills it once the time is over. An error of
// Start() becomes the result's `err`.
SubprocessResult RunSubprocess(const std::vector<std::string>& argv,
                               absl::Duration timeout,
                               const SubprocessOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_SUBPROCESS_H_
