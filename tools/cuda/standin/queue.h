// The stand-in device's queues: what has been put on which stream and has not
// run yet. One lock guards them, and all work runs under it.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_QUEUE_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_QUEUE_H_

#include <cstddef>
#include <functional>
#include <mutex>

#include "tools/cuda/standin/device_code.h"

namespace lockstep::standin {

// Work on a stream. Returns whether it is done; if it is not, it is called
// again after any other work has been done.
using Work = std::function<bool()>;

// Held while work runs. NCCL's stand-in keeps its own state under it too.
class DeviceLock {
 public:
  DeviceLock();

 private:
  std::lock_guard<std::mutex> lock_;
};

// Appends work to a stream that exists, then runs all that may run now
// (control.h), of any stream, on this host thread.
void Enqueue(cudaStream_t stream, Work work);
void Enqueue(const DeviceLock& lock, cudaStream_t stream, Work work);

// Called by work that is not done yet, but has changed what other work waits
// for.
void NoteProgress();

// Runs what may run, after something that work waits for has come about.
void RunWork(const DeviceLock& lock);

// Whether a stream is the default one or one that exists.
bool IsStream(cudaStream_t stream);

// Whether the range lies in one piece of device memory.
bool IsDeviceRange(const void* pointer, size_t bytes);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_QUEUE_H_
