#include "benchmarks/syncbn/cuda_timers.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
namespace {

absl::StatusOr<Event> MakeTimedEvent() {
  cudaEvent_t event = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreate(&event), "creating an event"));
  return Event(event);
}

}  // namespace

absl::StatusOr<CudaTimer> CudaTimer::Create() {
  CudaTimer timer;
  LOCKSTEP_ASSIGN_OR_RETURN(timer.begin_, MakeTimedEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(timer.end_, MakeTimedEvent());
  return timer;
}

absl::Status CudaTimer::Time(cudaStream_t stream,
                             absl::FunctionRef<absl::Status()> enqueue) {
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventRecord(begin_.get(), stream), "starting a timer"));
  LOCKSTEP_RETURN_IF_ERROR(enqueue());
  return CudaStatus(cudaEventRecord(end_.get(), stream), "stopping a timer");
}

absl::StatusOr<double> CudaTimer::Seconds() const {
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventSynchronize(end_.get()), "waiting for a timer"));
  float milliseconds = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()),
                 "reading a timer"));
  return 1e-3 * static_cast<double>(milliseconds);
}

absl::Status CudaTimedKernels::Time(TimedKernel kernel,
                                    absl::FunctionRef<absl::Status()> enqueue) {
  if (used_ == timed_.size()) {
    LOCKSTEP_ASSIGN_OR_RETURN(CudaTimer timer, CudaTimer::Create());
    timed_.push_back({.kernel = kernel, .timer = std::move(timer)});
  }
  Timed& timed = timed_[used_];
  timed.kernel = kernel;
  LOCKSTEP_RETURN_IF_ERROR(timed.timer.Time(kernels_.stream(), enqueue));
  ++used_;
  return absl::OkStatus();
}

absl::Status CudaTimedKernels::Collect() {
  for (size_t i = 0; i < used_; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, timed_[i].timer.Seconds());
    timing_.call.kernels[static_cast<size_t>(timed_[i].kernel)] += seconds;
  }
  used_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<std::byte>> CudaTimedKernels::Allocate(
    int64_t bytes) {
  return kernels_.Allocate(bytes);
}

absl::Status CudaTimedKernels::ComputeMoments(const ActivationShape& shape,
                                              ConstBuffer x,
                                              std::byte* record) {
  return Time(TimedKernel::kMoments,
              [&] { return kernels_.ComputeMoments(shape, x, record); });
}

absl::StatusOr<int64_t> CudaTimedKernels::Merge(
    const StatisticsRecord& record, const std::byte* gathered, int ranks,
    const MergeOptions& options, const RunningStatistics& running,
    std::byte* saved) {
  absl::StatusOr<int64_t> count = 0;
  LOCKSTEP_RETURN_IF_ERROR(Time(TimedKernel::kMerge, [&] {
    count = kernels_.Merge(record, gathered, ranks, options, running, saved);
    return count.status();
  }));
  return count;
}

absl::Status CudaTimedKernels::UseRunning(const StatisticsRecord& record,
                                          const RunningStatistics& running,
                                          double epsilon, std::byte* saved) {
  return kernels_.UseRunning(record, running, epsilon, saved);
}

absl::Status CudaTimedKernels::Normalize(const NormalizeCall& call) {
  return Time(TimedKernel::kNormalize,
              [&] { return kernels_.Normalize(call); });
}

absl::Status CudaTimedKernels::BackwardReduce(const BackwardCall& call,
                                              Buffer sums, Buffer dweight,
                                              Buffer dbias) {
  return Time(TimedKernel::kBackwardReduce, [&] {
    return kernels_.BackwardReduce(call, sums, dweight, dbias);
  });
}

absl::Status CudaTimedKernels::BackwardInput(const BackwardCall& call,
                                             ConstBuffer sums, Buffer dx,
                                             Buffer dresidual) {
  return Time(TimedKernel::kBackwardInput, [&] {
    return kernels_.BackwardInput(call, sums, dx, dresidual);
  });
}

absl::Status DrainedCommunicator::Run(const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream_), "before a message"));
  return group_.Run(call);
}

absl::StatusOr<GroupBuffer> DrainedCommunicator::Allocate(int64_t bytes,
                                                          CallSite site) {
  return group_.Allocate(bytes, site);
}

absl::StatusOr<std::unique_ptr<Communicator>> DrainedCommunicator::Split(
    int color, int key, CallSite site) {
  return group_.Split(color, key, site);
}

FinishedBatchNorm::FinishedBatchNorm(std::unique_ptr<BatchNorm> layer,
                                     cudaStream_t stream,
                                     std::function<absl::Status()> done)
    : layer_(std::move(layer)), stream_(stream), done_(std::move(done)) {}

int64_t FinishedBatchNorm::SavedBytes(DataType type) const {
  return layer_->SavedBytes(type);
}

absl::Status FinishedBatchNorm::Forward(const Forwards& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(layer_->Forward(buffers));
  return Finish();
}

absl::Status FinishedBatchNorm::Backward(
    const Backwards& buffers, absl::FunctionRef<void()> gradients_ready) {
  LOCKSTEP_RETURN_IF_ERROR(layer_->Backward(buffers, gradients_ready));
  return Finish();
}

absl::Status FinishedBatchNorm::Finish() const {
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream_), "waiting for a layer"));
  return done_();
}

}  // namespace lockstep::benchmarks
