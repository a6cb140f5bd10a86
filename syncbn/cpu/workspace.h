// What a rank's loops run on: its threads, and scratch memory.
#ifndef LOCKSTEP_SYNCBN_CPU_WORKSPACE_H_
#define LOCKSTEP_SYNCBN_CPU_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// How many threads ParallelFor may use when the calling thread calls it: as
// many as oneDNN would (omp_get_max_threads).
int MaxParallelThreads();

// The least work for each thread: with less, another is not worth starting.
inline constexpr int64_t kWorkOfThread = int64_t{1} << 15;

// Cuts [0, items) into one contiguous part for each thread, in order, and calls
// `body(begin, end, thread)` for each part that is not empty; returns when all
// are done. thread: in [0, MaxParallelThreads()), different for parts that run
// at the same time. work: how many numbers all of it goes over; no more threads
// take part than have kWorkOfThread of them. With one thread, or inside another
// such loop, it is a plain call. body must not throw.
void ParallelFor(
    int64_t items, int64_t work,
    absl::FunctionRef<void(int64_t begin, int64_t end, int thread)> body);

// Host memory aligned to 64. Errors: kResourceExhausted.
absl::StatusOr<std::shared_ptr<std::byte>> AllocateHost(int64_t bytes);

// Host memory that is kept from call to call and grows as needed.
class Scratch {
 public:
  // At least `bytes`, aligned to 64, unspecified, until the next call.
  absl::StatusOr<std::byte*> Reserve(int64_t bytes);

 private:
  std::shared_ptr<std::byte> memory_;
  int64_t bytes_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_WORKSPACE_H_
