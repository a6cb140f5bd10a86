// A Python that has PyTorch, in a process of its own.
#ifndef LOCKSTEP_BENCHMARKS_TORCH_PROCESS_H_
#define LOCKSTEP_BENCHMARKS_TORCH_PROCESS_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "benchmarks/line_worker.h"

namespace lockstep {

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

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_TORCH_PROCESS_H_
