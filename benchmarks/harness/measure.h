// What all benchmarks measure with: the order of turns and how many rounds of
// them there are, the clock that samples are taken by, their order statistics,
// and numbers that are the same everywhere, by position; how much memory a run
// may take, and how much something takes; memory that is aligned, and how fast
// all cores together copy it.
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

// How many rounds there are: `rounds`, or if that is 0 as many as end within
// `seconds`, if each takes as long as the longest so far; then at least
// `fewest`, and at most `most`.
struct RoundLimits {
  int rounds = 0;
  int fewest = 3;
  int most = 1000;
  double seconds = 0;
};

// Seconds on any clock that does not jump.
using ClockFunction = std::function<double()>;

// Gives each of `subjects` one turn in every round, so that a drift of the
// machine and what a neighbour leaves in the caches meet all alike. Returns the
// number of rounds. Errors: that of the first turn which fails;
// CheckInterrupted's after the turn in which the signal came.
absl::StatusOr<int> MeasureRounds(
    const RoundLimits& limits, size_t subjects, const ClockFunction& clock,
    const std::function<absl::Status(int round, size_t subject)>& take_turn);

// The error with the name of what failed before its message.
absl::Status Named(absl::string_view name, const absl::Status& status);

// Seconds since the host started: the same clock in all of its processes, so
// that times from several ranks of one host compare.
inline double SteadySeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// The p-th percentile by nearest rank: with the samples in ascending order
// x[1..n], x[ceil(p / 100 * n)], and x[1] for p = 0. It is always one of the
// samples; with fewer than 100 of them the 99th percentile is the largest.
// samples: at least one, in any order, no NaN. p in [0, 100].
// Cost: O(n) and a copy.
double Percentile(std::span<const double> samples, double p);

// The middle sample, or the mean of the two middle ones. At least one sample.
double Median(std::span<const double> samples);

// The position of the sample that is the median, or the smaller of the two
// middle ones. At least one sample. For when
// what was measured together with that sample matters too.
int64_t MedianIndex(std::span<const double> samples);

// At least one sample.
double Mean(std::span<const double> samples);

// A stream of numbers for each seed and number.
constexpr uint64_t UniformKey(uint64_t seed, uint64_t number) {
  return MixBits(MixBits(seed + 0x9e3779b97f4a7c15) + number);
}

// Number i of the stream, uniform in [-1, 1).
constexpr double Uniform(uint64_t key, int64_t i) {
  const uint64_t bits =
      MixBits(key + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15);
  return static_cast<double>(static_cast<int64_t>(bits) >> 11) * 0x1p-52;
}

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

// Error, of both: kResourceExhausted without memory.
absl::StatusOr<AlignedMemory> AllocateAligned(int64_t bytes);
// For bounds: in huge pages, where the kernel gives them and they save any.
absl::StatusOr<AlignedMemory> AllocateHuge(int64_t bytes);

// How a copy writes: by memcpy, or past the caches, which spares reading what
// is overwritten; that is memcpy too where the processor cannot.
enum class CopyStores { kMemcpy, kStreamed };

// One thread's part of the memory: two halves, one of which is copied to the
// other.
class Copier {
 public:
  // half: bytes, at least 1. Error: kResourceExhausted without memory.
  static absl::StatusOr<Copier> Create(int64_t half);

  // Touches all of the memory; then the halves differ in every byte.
  void Prepare();
  // Is done when it returns, whatever the compiler thinks of clocks around it.
  void Copy(CopyStores stores = CopyStores::kMemcpy);
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
                                      int iterations,
                                      CopyStores stores = CopyStores::kMemcpy);

// Threads that update memory in place.
class Updater {
 public:
  explicit Updater(int threads) : memory_(static_cast<size_t>(threads)) {}

  // Each of `calls` calls adds 1 to every float32 of `bytes` bytes, of which
  // each thread owns a part. So a call reads `bytes` and writes as many, which
  // is the fastest way to do both: a line that is written has just been read.
  // Every call has memory of its own, which its threads have written before the
  // first call, call by call, so it lies where the data of a rank would that
  // had just written it; it is kept for the next time, as a rank keeps its own.
  // A call takes as long as in its slowest thread. result.wrong: float32 that
  // were not updated. bytes: at least 1; a thread updates at least 4. Error:
  // kResourceExhausted without memory.
  absl::StatusOr<TimedCalls> Time(int64_t bytes, int calls);

 private:
  // By thread.
  std::vector<AlignedMemory> memory_;
  int64_t size_ = 0;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_MEASURE_H_
