// A Python that has PyTorch, in its own process. It reads lines and answers
// with lines.
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

// Returns the Pythons that a benchmark's --python names. A name without a slash
// is looked for in PATH. The default is python3, then /usr/bin/python3.
std::vector<std::string> PythonsToTry(const std::string& python);

// Runs a script that first says "ready" and the version of PyTorch, or
// "missing" and why PyTorch is missing. Then it answers each line with one
// line. An answer begins with "lockstep: ". All other output, to standard
// output or error, is talk. The last line of talk helps to explain a missing
// answer. The process ends with this object, as a Subprocess does. Not thread
// safe.
class TorchProcess {
 public:
  // Tries `pythons` in turn. Error: kUnavailable, with the reason for each
  // Python. Pythons that `deadline` leaves no time for are not mentioned.
  static absl::StatusOr<TorchProcess> Start(
      std::span<const std::string> pythons, absl::string_view script,
      absl::Time deadline);

  // Starts a program that talks as that script does. Its errors begin with
  // `name`.
  static absl::StatusOr<TorchProcess> StartProgram(
      const std::vector<std::string>& argv, const std::string& name,
      absl::Time deadline);

  // Sends a line and returns the answer. Errors, which begin with the Python:
  // kUnavailable if the process ended, with how it ended and its last line;
  // kDeadlineExceeded if it did not answer, even if it talked. After an error
  // the process is gone.
  absl::StatusOr<std::string> Ask(absl::string_view line, absl::Time deadline);

  // The two halves of Ask, so that several processes can work at once. Errors:
  // those of Ask.
  absl::Status Tell(absl::string_view line);
  absl::StatusOr<std::string> Answer(absl::Time deadline);

  // Returns, for example, "PyTorch 1.13.0 (/usr/bin/python3)".
  std::string name() const;
  // Returns, for example, "1.13.0".
  const std::string& version() const { return version_; }
  // Returns the words that followed the version when it was ready.
  const std::string& remark() const { return remark_; }

 private:
  TorchProcess(Subprocess process, std::string python)
      : process_(std::move(process)), python_(std::move(python)) {}

  // Returns the next answer, without its prefix and its line end.
  absl::StatusOr<std::string> Receive(absl::Time deadline);
  // Ends the process, and returns how it ended.
  std::string End();
  std::string DescribeLastOutput() const;

  Subprocess process_;
  std::string python_;
  std::string version_, remark_;
  bool ended_ = false;
  std::string last_output_line_;  // The last line that was not an answer.
};

// Returns the error for an answer that is not understood: kInternal.
absl::Status NotUnderstood(absl::string_view answer);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_TORCH_PROCESS_H_
