// The memory that a run may take and takes, aligned memory, and the speed of
// copies and updates of memory on all cores.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_MEMORY_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/harness/rank_service.h"

namespace lockstep::benchmarks {

// Returns the bytes that can be allocated without swapping: the machine's
// available memory, but at most what this process's control group has left.
// Returns the largest int64_t if the kernel does not say.
int64_t AvailableMemory();

// Returns the share of AvailableMemory that a benchmark may take.
int64_t MemoryForRun();

// Refuses a run that will not fit, before it starts. Error: kInvalidArgument:
// `what` (which begins with the flag to change), "need ", and both sizes in
// MiB.
absl::Status CheckMemory(absl::string_view what, int64_t needed, int64_t room);

// Returns MemAvailable in the text of /proc/meminfo.
std::optional<int64_t> MemAvailable(absl::string_view meminfo);

// Runs `warm_up` and then `work` in a copy of this process. Returns by how many
// bytes `work` raises the peak of the copy's resident memory, which is the most
// that the work takes. `warm_up` runs the same code on something small, so that
// its pages do not count. The kernel counts in pages, and may be a few dozen
// pages off.
//
// Only for a process of one thread. Errors: kInternal with the first 1023 bytes
// of the message if `warm_up` or `work` fails; kAborted if the copy dies or
// does not finish within a minute.
absl::StatusOr<int64_t> ResidentGrowth(
    const std::function<absl::Status()>& warm_up,
    const std::function<absl::Status()>& work);

// Uninitialised memory, aligned to kMemoryAlignment.
inline constexpr int64_t kMemoryAlignment = 64;
struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

// Returns the next multiple of kMemoryAlignment, or `bytes` if it is one.
constexpr int64_t RoundUpToAlignment(int64_t bytes) {
  return (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
}

// Allocates memory. Both functions return kResourceExhausted without memory.
absl::StatusOr<AlignedMemory> AllocateAligned(int64_t bytes);
// Allocates memory in huge pages, if the kernel gives them and they save any
// pages. For copies and updates that serve as bounds.
absl::StatusOr<AlignedMemory> AllocateHuge(int64_t bytes);

// How a copy writes: by memcpy, or past the caches. Writing past the caches
// spares reading the old contents. If the processor cannot do it, memcpy is
// used.
enum class CopyStores { kMemcpy, kStreamed };

// One thread's part of the memory: two halves. One half is copied to the other.
class Copier {
 public:
  // half: bytes, at least 1. Error: kResourceExhausted without memory.
  static absl::StatusOr<Copier> Create(int64_t half);

  // Touches all of the memory. The halves then differ in every byte.
  void Prepare();
  // Copies. The copy is done on return; the compiler cannot move it past
  // readings of a clock.
  void Copy(CopyStores stores = CopyStores::kMemcpy);
  // Returns the number of bytes that differ: 0 after a copy.
  int64_t CountWrong() const;

 private:
  std::byte* source() const { return memory_.get(); }
  std::byte* target() const { return memory_.get() + apart_; }

  int64_t half_ = 0;
  int64_t apart_ = 0;
  AlignedMemory memory_;
};

// Copies with `threads` threads at once, which together own `bytes` of memory.
// Each thread copies the first half of its part to the second. All together
// read bytes / 2 and write bytes / 2. `warmup` copies do not count. Each of the
// `iterations` counted copies takes as long as in its slowest thread.
// result.wrong is the number of bytes that were not copied. bytes: at least 2
// per thread. Error: kResourceExhausted without memory.
absl::StatusOr<TimedCalls> TimeCopies(int threads, int64_t bytes, int warmup,
                                      int iterations,
                                      CopyStores stores = CopyStores::kMemcpy);

// Threads that update memory in place.
class Updater {
 public:
  explicit Updater(int threads) : memory_(static_cast<size_t>(threads)) {}

  // Times `calls` calls, each of which adds 1 to every float32 of `bytes`
  // bytes. Each thread owns a part of the bytes. A call reads `bytes` and
  // writes as many. No way to do both is faster, because a written line has
  // just been read.
  //
  // Every call has its own memory. Its threads have written all of it before
  // the first call, call by call. So the memory is where a rank's data would be
  // that the rank had just written. The memory is kept for the next time, as a
  // rank keeps its own. A call takes as long as in its slowest thread.
  //
  // result.wrong: the number of float32 that were not updated. bytes: at least
  // 1; a thread updates at least 4. Error: kResourceExhausted without memory.
  absl::StatusOr<TimedCalls> Time(int64_t bytes, int calls);

 private:
  // By thread.
  std::vector<AlignedMemory> memory_;
  int64_t size_ = 0;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_MEMORY_H_
