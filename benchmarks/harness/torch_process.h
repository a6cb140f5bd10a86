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

// What a benchmark's --python names, of which one without a slash is looked for
// in PATH; by default python3, or else the system's.
std::vector<std::string> PythonsToTry(const std::string& python);

// Runs a script that says "ready" and the version of PyTorch, or "missing" and
// why there is none; then answers each line that it is told with one. An answer
// begins with "lockstep: "; all else that the program writes, to standard
// output or error, is talk, whose last line helps to say why there is no
// answer. Ends with this object, as a Subprocess does. Not thread safe.
class TorchProcess {
 public:
  // Tries `pythons` in turn. Error: kUnavailable, which says for each why it
  // will not do; those that `deadline` leaves no time for are not mentioned.
  static absl::StatusOr<TorchProcess> Start(
      std::span<const std::string> pythons, absl::string_view script,
      absl::Time deadline);

  // A program that talks as that script does, whose errors begin with `name`.
  static absl::StatusOr<TorchProcess> StartProgram(
      const std::vector<std::string>& argv, const std::string& name,
      absl::Time deadline);

  // Errors, which begin with the Python: kUnavailable if the process ended,
  // which says how, and with which last words; kDeadlineExceeded if it did not
  // answer, however much it talked. It is then gone.
  absl::StatusOr<std::string> Ask(absl::string_view line, absl::Time deadline);

  // The two halves of Ask, so that several processes can work at once. Errors:
  // those of Ask.
  absl::Status Tell(absl::string_view line);
  absl::StatusOr<std::string> Answer(absl::Time deadline);

  // "PyTorch 1.13.0 (/usr/bin/python3)".
  std::string name() const;
  // "1.13.0".
  const std::string& version() const { return version_; }
  // What else it said when it was ready.
  const std::string& remark() const { return remark_; }

 private:
  TorchProcess(Subprocess process, std::string python)
      : process_(std::move(process)), python_(std::move(python)) {}

  // The next answer, without its prefix and its line end.
  absl::StatusOr<std::string> Receive(absl::Time deadline);
  // Ends the process, and says how it ended.
  std::string End();
  std::string LastWords() const;

  Subprocess process_;
  std::string python_;
  std::string version_, remark_;
  bool ended_ = false;
  std::string talk_;  // The last line that was no answer.
};

// The error for an answer that is none: kInternal.
absl::Status NotUnderstood(absl::string_view answer);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_TORCH_PROCESS_H_
