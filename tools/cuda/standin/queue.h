// The stand-in device's queues: what has been put on which stream and has not
// run yet. One lock guards them, and all work runs under it.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_QUEUE_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "tools/cuda/standin/device_code.h"

namespace lockstep::standin {

// Work on a stream. Returns whether it is done; if it is not, it is called
// again after any other work has been done.
using Work = std::function<bool()>;

// Makes it anew each time that it is to run: more than once in a graph.
using MakeWork = std::function<Work()>;

// Held while work runs. NCCL's stand-in keeps its own state under it too.
class DeviceLock {
 public:
  DeviceLock();

  // Lets others have the lock until work was done, or for a millisecond.
  void Yield();

 private:
  std::unique_lock<std::mutex> lock_;
};

// Appends work to a stream, then runs all that may run now (control.h), of any
// stream, on this host thread; or records it, where the stream is captured.
// Returns the error, which it notes, of a stream that does not exist or whose
// capture does not allow it.
cudaError_t Put(cudaStream_t stream, MakeWork make);
cudaError_t Put(const DeviceLock& lock, cudaStream_t stream, MakeWork make);

// Whether the schedule drops this wait for memory of a kernel of the device.
bool DropsMemoryWait(int device);

// Called by work that is not done yet, but has changed what other work waits
// for.
void NoteProgress();

// Runs what may run, after something that work waits for has come about.
void RunWork(const DeviceLock& lock);

// Lets what is on a stream run, where the schedule holds it back.
void Release(const DeviceLock& lock, cudaStream_t stream);

// Runs what may run until `ready`; false if it is not after `limit`.
bool WaitUntil(DeviceLock& lock, const std::function<bool()>& ready,
               std::chrono::milliseconds limit = std::chrono::hours(24));

// Runs what is on the device's streams; false if not all of it is done after
// `limit`.
bool WaitForDevice(DeviceLock& lock, int device,
                   std::chrono::milliseconds limit = std::chrono::hours(24));

// How often threads have asked a stream or an event; each millisecond of a wait
// is a question too.
int64_t Polls();

// Whether a stream is the default one or one that exists.
bool IsStream(cudaStream_t stream);

// For a call that allocates or frees, which streams that are captured forbid:
// returns the error, which it notes.
cudaError_t CheckUnsafeCall();
// For an asynchronous copy of pageable memory, which the stream's own capture
// forbids.
cudaError_t CheckPageable(cudaStream_t stream);

// Counts (control.h) for the calling thread.
void NoteGroup();
void NoteHostWait();
void NoteCommunicatorEnd(bool healthy);

// Whether the range lies in one piece of device memory.
bool IsDeviceRange(const void* pointer, size_t bytes);

// Device memory that NCCL's windows may be made of: cudaMalloc's is not.
cudaError_t AllocateForWindows(void** pointer, size_t bytes);
cudaError_t FreeForWindows(void* pointer);
bool IsForWindows(const void* pointer, size_t bytes);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_QUEUE_H_
