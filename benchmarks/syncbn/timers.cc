#include "benchmarks/syncbn/timers.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::benchmarks {
namespace {

// Adds the time until its end to a kernel's.
class Timer {
 public:
  Timer(CallTiming& timing, TimedKernel kernel)
      : timing_(timing),
        seconds_(timing.call.kernels[static_cast<size_t>(kernel)]),
        begin_(timing.clock()) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() { seconds_ += timing_.clock() - begin_; }

 private:
  CallTiming& timing_;
  double& seconds_;
  const double begin_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<std::byte>> TimedKernels::Allocate(
    int64_t bytes) {
  return kernels_.Allocate(bytes);
}

absl::Status TimedKernels::ComputeMoments(const ActivationShape& shape,
                                          ConstBuffer x, std::byte* record) {
  const Timer timer(timing_, TimedKernel::kMoments);
  return kernels_.ComputeMoments(shape, x, record);
}

absl::StatusOr<int64_t> TimedKernels::Merge(const StatisticsRecord& record,
                                            const std::byte* gathered,
                                            int ranks,
                                            const MergeOptions& options,
                                            const RunningStatistics& running,
                                            std::byte* saved) {
  const Timer timer(timing_, TimedKernel::kMerge);
  return kernels_.Merge(record, gathered, ranks, options, running, saved);
}

absl::Status TimedKernels::UseRunning(const StatisticsRecord& record,
                                      const RunningStatistics& running,
                                      double epsilon, std::byte* saved) {
  return kernels_.UseRunning(record, running, epsilon, saved);
}

absl::Status TimedKernels::Normalize(const NormalizeCall& call) {
  const Timer timer(timing_, TimedKernel::kNormalize);
  return kernels_.Normalize(call);
}

absl::Status TimedKernels::BackwardReduce(const BackwardCall& call, Buffer sums,
                                          Buffer dweight, Buffer dbias) {
  const Timer timer(timing_, TimedKernel::kBackwardReduce);
  return kernels_.BackwardReduce(call, sums, dweight, dbias);
}

absl::Status TimedKernels::BackwardInput(const BackwardCall& call,
                                         ConstBuffer sums, Buffer dx,
                                         Buffer dresidual) {
  const Timer timer(timing_, TimedKernel::kBackwardInput);
  return kernels_.BackwardInput(call, sums, dx, dresidual);
}

absl::Status TimedCommunicator::Run(const Collective& call) {
  MessageTimes times;
  times.bytes = call.input.size_bytes();
  times.entered = timing_.clock();
  const absl::Status status = group_.Run(call);
  times.left = timing_.clock();
  timing_.call.messages.push_back(times);
  return status;
}

absl::StatusOr<GroupBuffer> TimedCommunicator::Allocate(int64_t bytes,
                                                        CallSite site) {
  return group_.Allocate(bytes, site);
}

absl::StatusOr<std::unique_ptr<Communicator>> TimedCommunicator::Split(
    int color, int key, CallSite site) {
  return group_.Split(color, key, site);
}

}  // namespace lockstep::benchmarks
