// The time that each operation of a network takes on the host.
#ifndef LOCKSTEP_MODELS_PROGRAM_OPERATION_TIMES_H_
#define LOCKSTEP_MODELS_PROGRAM_OPERATION_TIMES_H_

#include <chrono>
#include <vector>

namespace lockstep {

// The seconds that each operation has taken since the sums were cleared.
struct OperationTimes {
  std::vector<double> forward_seconds;  // By operation; [operations].
  std::vector<double> backward_seconds;
};

// Adds the duration of its own lifetime to a sum; does nothing if `sum` is
// null.
class OperationTimer {
 public:
  explicit OperationTimer(double* sum) : sum_(sum) {
    if (sum_ != nullptr) start_ = Clock::now();
  }
  ~OperationTimer() {
    if (sum_ == nullptr) return;
    *sum_ += std::chrono::duration<double>(Clock::now() - start_).count();
  }
  OperationTimer(const OperationTimer&) = delete;
  OperationTimer& operator=(const OperationTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double* const sum_;
  Clock::time_point start_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_PROGRAM_OPERATION_TIMES_H_
