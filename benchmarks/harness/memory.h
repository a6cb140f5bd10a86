// How much memory a run may take, and how much something takes; memory that is
// aligned, and how fast all cores together copy it.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_MEMORY_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/harness/rank_service.h"

namespace lockstep::benchmarks {

// Bytes that can be had without swapping: what the machine has available, and
// no more than this process's control group has left. The most there can be if
// the kernel does not say.
int64_t AvailableMemory();

// The share of it that a benchmark may take.
int64_t MemoryForRun();

// Refuses, before it starts, what will not fit. Error: kInvalidArgument: `what`
// (which begins with the flag to change), "need ", and both in MiB.
absl::Status CheckMemory(absl::string_view what, int64_t needed, int64_t room);

// MemAvailable in the text of /proc/meminfo.
std::optional<int64_t> MemAvailable(absl::string_view meminfo);

// Runs `warm_up` and then `work` in a copy of this process and returns by how
// many bytes the peak of the copy's resident memory grows in the second: what
// the work takes at its most. The first runs the same code, so that its pages
// do not count, on something small. The kernel counts in pages, and may be a
// few dozen of them off.
//
// Only for a process of one thread. Errors: kInternal with the first 1023 bytes
// of the message of the one that fails; kAborted if the copy does not finish
// within a minute.
absl::StatusOr<int64_t> ResidentGrowth(
    const std::function<absl::Status()>& warm_up,
    const std::function<absl::Status()>& work);

// Uninitialised, aligned to kMemoryAlignment.
inline constexpr int64_t kMemoryAlignment = 64;
struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

// The next multiple of kMemoryAlignment.
constexpr int64_t RoundUpToAlignment(int64_t bytes) {
  return (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
}

// Error: kResourceExhausted without memory.
absl::StatusOr<AlignedMemory> AllocateAligned(int64_t bytes);

// One thread's part of the memory: two halves, one of which is copied to the
// other.
class Copier {
 public:
  // half: bytes, at least 1. Error: kResourceExhausted without memory.
  static absl::StatusOr<Copier> Create(int64_t half);

  // Touches all of the memory; then the halves differ in every byte.
  void Prepare();
  // Is done when it returns, whatever the compiler thinks of clocks around it.
  void Copy();
  // Bytes that differ: 0 after a copy.
  int64_t CountWrong() const;

 private:
  std::byte* source() const { return memory_.get(); }
  std::byte* target() const { return memory_.get() + apart_; }

  int64_t half_ = 0;
  int64_t apart_ = 0;
  AlignedMemory memory_;
};

// Copies with `threads` threads at once, which together own `bytes` of memory:
// each copies the first half of its part to the second, which reads bytes / 2
// and writes bytes / 2 in all. `warmup` copies do not count; each of the
// `iterations` others takes as long as in its slowest thread. result.wrong is
// the number of bytes that were not copied. bytes: at least 2 a thread. Error:
// kResourceExhausted without memory.
absl::StatusOr<TimedCalls> TimeCopies(int threads, int64_t bytes, int warmup,
                                      int iterations);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_MEMORY_H_
