// The stand-in device's queues: the work of each stream that has not run yet.
// One lock guards them, and all work runs under it.
#ifndef LOCKSTEP_STANDIN_QUEUE_H_
#define LOCKSTEP_STANDIN_QUEUE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>

#include "standin/device_code.h"

namespace lockstep::standin {

// A piece of work on a stream. Returns whether the work is done. If it is not,
// it is called again after other work has made progress.
using Work = std::function<bool()>;

// Makes a piece of work for each run. In a graph the work runs several times.
using MakeWork = std::function<Work()>;

// The lock that is held while work runs. It also guards the state of NCCL's
// stand-in.
class DeviceLock {
 public:
  DeviceLock();

  // Releases the lock until work was done, or for a millisecond.
  void Yield();

 private:
  std::unique_lock<std::mutex> lock_;
};

// Appends work to a stream. If the stream is captured, Put records the work;
// otherwise it runs all work of any stream that the schedule (control.h)
// allows, on this host thread. If the stream does not exist or its capture
// forbids the work, Put records the error and returns it.
cudaError_t Put(cudaStream_t stream, MakeWork make);
cudaError_t Put(const DeviceLock& lock, cudaStream_t stream, MakeWork make);

// Counts a wait for memory of a kernel of the device. Returns whether the
// schedule drops this wait.
bool ShouldDropMemoryWait(int device);

// Reports that unfinished work has changed something that other work waits for.
// Only such work may call it.
void NoteProgress();

// Runs all work that may run, after a condition that work waits for has come
// true.
void RunWork(const DeviceLock& lock);

// Lets the work of a stream run that the schedule holds back.
void ReleaseStream(const DeviceLock& lock, cudaStream_t stream);

// Runs all work that may run until `ready` returns true. Returns false if that
// takes longer than `limit`.
bool WaitUntil(DeviceLock& lock, const std::function<bool()>& ready,
               std::chrono::milliseconds limit = std::chrono::hours(24));

// Runs the work of the device's streams. Returns false if it is not all done
// after `limit`.
bool WaitForDevice(DeviceLock& lock, int device,
                   std::chrono::milliseconds limit = std::chrono::hours(24));

// Returns how often threads have queried a stream or an event. Each millisecond
// of a wait counts as a query.
int64_t Polls();

// Returns whether a stream exists. The default stream always does.
bool IsStream(cudaStream_t stream);

// Checks a call that allocates, frees, copies or sets memory, which is
// forbidden while a stream is captured. Records the error and returns it.
cudaError_t CheckUnsafeCall();
// Checks an asynchronous copy of pageable memory, which is forbidden if its
// stream is captured.
cudaError_t CheckPageable(cudaStream_t stream);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_QUEUE_H_
