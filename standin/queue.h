// Puts work on streams. queue.cc also implements CUDA's streams and events
// (include/cuda_runtime.h).
#ifndef LOCKSTEP_STANDIN_QUEUE_H_
#define LOCKSTEP_STANDIN_QUEUE_H_

#include "absl/base/thread_annotations.h"
#include "standin/device.h"
#include "standin/include/device_code.h"

namespace lockstep::standin {

// Appends work to a stream. If the stream is captured, Put records the work;
// otherwise it runs all work of any stream that the schedule (control.h)
// allows, on this host thread. If the stream does not exist or its capture
// forbids the work, Put records the error and returns it.
cudaError_t Put(cudaStream_t stream, MakeWork make);
cudaError_t Put(const DeviceLock& lock, cudaStream_t stream, MakeWork make)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);

// The same for a kernel. A stream of another device than the current one is an
// error too, as it is for CUDA.
cudaError_t PutKernel(cudaStream_t stream, MakeWork make);

// Returns whether a stream exists. The default stream always does.
bool IsStream(cudaStream_t stream);
// Returns the stream's device; -1 if the stream does not exist. The default
// stream is the current device's.
int DeviceOfStream(cudaStream_t stream);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_QUEUE_H_
