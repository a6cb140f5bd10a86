// A Python that has PyTorch, in a process of its own that is told lines and
// answers with lines.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_TORCH_PROCESS_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_TORCH_PROCESS_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/subprocess.h"

namespace lockstep::benchmarks {

// What an answer begins with. All else that the program writes, to standard
// output or error, is talk: its last line helps to say why there is no answer.
inline constexpr absl::string_view kAnswerPrefix = "lockstep: ";

// A running program of another language, say, that is told lines. Ends with
// this object, as a Subprocess does. Not thread safe.
class LineWorker {
 public:
  // Starts `argv`, its program found as the shell finds it. A program that
  // cannot be run says so in place of its first answer. Errors: the system's.
  static absl::StatusOr<LineWorker> Start(const std::vector<std::string>& argv);

  // Errors: kUnavailable if the program is gone.
  absl::Status Send(absl::string_view line);

  // The next answer, without its prefix and its line end. Errors: kUnavailable
  // if the program ended, which says how, and with which last words;
  // kDeadlineExceeded, however much the program talks. It is then ended.
  absl::StatusOr<std::string> Receive(absl::Time deadline);

 private:
  explicit LineWorker(Subprocess process) : process_(std::move(process)) {}

  // Ends the process, and says how it ended.
  std::string End();
  std::string LastWords() const;

  Subprocess process_;
  bool ended_ = false;
  std::string talk_;  // The last line that was no answer.
};

// What a benchmark's --python names, of which one without a slash is looked for
// in PATH; by default python3, or else the system's.
std::vector<std::string> PythonsToTry(const std::string& python);

// Runs a script that says "ready" and the version of PyTorch, or "missing" and
// why there is none; then answers each line that it is told with one. Ends with
// this object. Not thread safe.
class TorchProcess {
 public:
  // Tries `pythons` in turn. Error: kUnavailable, which says for each why it
  // will not do; those that `deadline` leaves no time for are not mentioned.
  static absl::StatusOr<TorchProcess> Start(
      std::span<const std::string> pythons, absl::string_view script,
      absl::Time deadline);

  // Errors, which begin with the Python: kUnavailable if the process ended,
  // kDeadlineExceeded if it said nothing. It is then gone.
  absl::StatusOr<std::string> Ask(absl::string_view line, absl::Time deadline);

  const std::string& python() const { return python_; }
  // "1.13.0", and what else it said then.
  const std::string& version() const { return version_; }

 private:
  TorchProcess(LineWorker worker, std::string python, std::string version)
      : worker_(std::move(worker)),
        python_(std::move(python)),
        version_(std::move(version)) {}

  static absl::StatusOr<TorchProcess> StartWith(const std::string& python,
                                                absl::string_view script,
                                                absl::Time deadline);

  LineWorker worker_;
  std::string python_;
  std::string version_;
};

// The error for an answer that is none: kInternal.
absl::Status NotUnderstood(absl::string_view answer);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_TORCH_PROCESS_H_
