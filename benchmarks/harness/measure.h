// The tools that all benchmarks measure with: the order and number of turns,
// the clock and order statistics, and random numbers by position. Further
// tools: the memory of a run, aligned memory, and the speed of copies on all
// cores.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_MEASURE_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_MEASURE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/counter_random.h"
#include "benchmarks/harness/rank_service.h"

namespace lockstep::benchmarks {

// The number of rounds: `rounds`, unless it is 0. If it is 0, there are as many
// rounds as end within `seconds`, if each takes as long as the longest so far.
// There are then at least `fewest` and at most `most` rounds.
struct RoundLimits {
  int rounds = 0;
  int fewest = 3;
  int most = 1000;
  double seconds = 0;
};

// Returns the seconds of a clock that does not jump.
using ClockFunction = std::function<double()>;

// Gives each of `subjects` one turn in every round. The order varies, so that a
// drift of the machine and the caches' contents affect all subjects alike.
// Returns the number of rounds. Errors: that of the first turn which fails;
// CheckInterrupted's after the turn in which the signal came.
absl::StatusOr<int> MeasureRounds(
    const RoundLimits& limits, size_t subjects, const ClockFunction& clock,
    const std::function<absl::Status(int round, size_t subject)>& take_turn);

// Returns the error with `name` before its message.
absl::Status Named(absl::string_view name, const absl::Status& status);

// Returns the seconds since the host started. All processes of a host have the
// same clock, so times of several ranks of one host compare.
inline double SteadySeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Returns the p-th percentile by nearest rank: with the samples in ascending
// order x[1..n], x[ceil(p / 100 * n)], and x[1] for p = 0. The result is always
// one of the samples; with fewer than 100 samples the 99th percentile is the
// largest.
// samples: at least one, in any order, no NaN. p in [0, 100].
// Cost: O(n) and a copy.
double Percentile(std::span<const double> samples, double p);

// Returns the middle sample, or the mean of the two middle ones. At least one
// sample.
double Median(std::span<const double> samples);

// Returns the position of the median sample, or of the smaller of the two
// middle ones. At least one sample. For callers that need what was measured
// together with the median.
int64_t MedianIndex(std::span<const double> samples);

// Returns the mean. At least one sample.
double Mean(std::span<const double> samples);

// Returns the key of a stream of numbers, for a seed and the stream's number.
constexpr uint64_t UniformKey(uint64_t seed, uint64_t number) {
  return MixBits(MixBits(seed + 0x9e3779b97f4a7c15) + number);
}

// Returns number i of the stream, uniform in [-1, 1).
constexpr double Uniform(uint64_t key, int64_t i) {
  const uint64_t bits =
      MixBits(key + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15);
  return static_cast<double>(static_cast<int64_t>(bits) >> 11) * 0x1p-52;
}

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

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_MEASURE_H_
