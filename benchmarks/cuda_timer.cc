// Events that can be timed.
#include "benchmarks/cuda_timer.h"

#include <cuda_runtime.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"

namespace lockstep {
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

}  // namespace lockstep
