// How the stand-in runs a kernel: launches, and what device code asks of the
// block that it runs in.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_LAUNCH_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <string>

#include "tools/cuda/standin/types.h"

namespace lockstep::standin {

// Limits of a launch; those of every GPU since compute capability 7.0.
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kMaxBlockZ = 64;
inline constexpr int kMaxGridX = 0x7fffffff;
inline constexpr int kMaxGridYz = 65535;
inline constexpr int kMaxSharedBytes = 48 << 10;

// Puts a launch on its stream: `thread` runs once for each thread of each
// block. One kernel runs at a time, on the host thread that made it possible:
// with an idle stream the calling one, before this returns. Returns the error
// that a bad configuration has; a fault of the kernel itself (threads that wait
// for ones that never come) ends the launch, is reported on standard error, and
// is the error of the next call that waits.
cudaError_t Launch(const cudaLaunchConfig_t& config,
                   std::function<void()> thread);

// What the last fault was, of any host thread; empty if there was none.
std::string LastFault();

// Where in the source a device thread waits.
struct Site {
  const char* file;
  int line;
};

// Called by device threads alone.
int Lane();             // In [0, 32).
void* DynamicShared();  // Of this block, 16-byte aligned; null if it has none.
void SyncThreads(Site site);
// Waits for the lanes in `mask`; returns those whose predicate is true.
uint32_t Ballot(uint32_t mask, bool predicate, Site site);
// Waits for the lanes in `mask`; returns the value that lane `source` brought,
// or all bits set if it did not come.
uint64_t Exchange(uint32_t mask, uint64_t value, int source, Site site);

// The error state that the stand-in's runtime and its launches share.

// Notes an error as this host thread's last; returns it.
cudaError_t Record(cudaError_t error);

// Notes that a kernel ended in a fault; LastFault() tells it.
void SetFault(std::string what);

// cudaErrorLaunchFailure if a kernel ended in a fault since the last call.
cudaError_t TakeFault();

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_LAUNCH_H_
