// Reads memory from /proc/meminfo and the control group of version 2.
#include "benchmarks/harness/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/vector_unit.h"
#include "benchmarks/harness/timed_threads.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace lockstep::benchmarks {
namespace {

// The share of the available memory. Other programs may come to need the rest.
constexpr double kShareForRun = 0.7;

// Returns what the control group at the root of this process's view has left.
// "max" is not a number and means no limit.
std::optional<int64_t> ControlGroupMemoryLeft() {
  int64_t limit = 0, used = 0;
  if (!absl::SimpleAtoi(ReadFile("/sys/fs/cgroup/memory.max").value_or(""),
                        &limit) ||
      !absl::SimpleAtoi(ReadFile("/sys/fs/cgroup/memory.current").value_or(""),
                        &used)) {
    return std::nullopt;
  }
  return std::max<int64_t>(limit - used, 0);
}

}  // namespace

std::optional<int64_t> MemAvailable(absl::string_view meminfo) {
  for (const absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (fields.size() == 3 && fields[0] == "MemAvailable:" &&
        absl::SimpleAtoi(fields[1], &kilobytes)) {
      return kilobytes << 10;
    }
  }
  return std::nullopt;
}

int64_t AvailableMemory() {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  return std::min(
      MemAvailable(ReadFile("/proc/meminfo").value_or("")).value_or(kUnknown),
      ControlGroupMemoryLeft().value_or(kUnknown));
}

int64_t MemoryForRun() {
  return static_cast<int64_t>(kShareForRun *
                              static_cast<double>(AvailableMemory()));
}

absl::Status CheckMemory(absl::string_view what, int64_t needed, int64_t room) {
  if (needed <= room) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " need ", needed >> 20,
                                                 " MiB, but there is room for ",
                                                 room >> 20, " MiB"));
}

// Measures the memory of a forked process.
namespace {

constexpr unsigned kDeadlineSeconds = 60;

// The child's result, in memory that both processes share.
struct Growth {
  int64_t bytes = -1;  // Below 0 if it failed; `error` says why.
  std::array<char, 1024> error = {};
};

// Returns the peak resident memory. A forked process begins with its present
// size as the peak, not with its parent's peak.
int64_t PeakBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

// Runs in the child.
[[noreturn]] void Measure(const std::function<absl::Status()>& warm_up,
                          const std::function<absl::Status()>& work,
                          Growth& growth) {
  alarm(kDeadlineSeconds);
  absl::Status status = warm_up();
  const int64_t before = PeakBytes();
  if (status.ok()) status = work();
  if (status.ok()) growth.bytes = PeakBytes() - before;
  status.message().copy(growth.error.data(), growth.error.size() - 1);
  _exit(0);
}

}  // namespace

absl::StatusOr<int64_t> ResidentGrowth(
    const std::function<absl::Status()>& warm_up,
    const std::function<absl::Status()>& work) {
  void* const shared = mmap(nullptr, sizeof(Growth), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "cannot map memory");
  }
  Growth* const shared_growth = new (shared) Growth;
  const pid_t pid = fork();
  if (pid == 0) Measure(warm_up, work, *shared_growth);
  int status = 0;
  while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const Growth growth = *shared_growth;
  munmap(shared, sizeof(Growth));
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot fork");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::AbortedError(
        "the process whose memory is measured did not finish");
  }
  if (growth.bytes < 0) return absl::InternalError(growth.error.data());
  return growth.bytes;
}

namespace {

absl::StatusOr<AlignedMemory> Allocate(int64_t bytes, int64_t alignment) {
  const int64_t size = (bytes + alignment - 1) / alignment * alignment;
  AlignedMemory memory(static_cast<std::byte*>(std::aligned_alloc(
      static_cast<size_t>(alignment), static_cast<size_t>(size))));
  if (memory != nullptr) return memory;
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for ", bytes, " bytes"));
}

}  // namespace

absl::StatusOr<AlignedMemory> AllocateAligned(int64_t bytes) {
  return Allocate(bytes, kMemoryAlignment);
}

absl::StatusOr<AlignedMemory> AllocateHuge(int64_t bytes) {
  constexpr int64_t kHugePage = int64_t{2} << 20;
  if (bytes < 2 * kHugePage) return AllocateAligned(bytes);
  LOCKSTEP_ASSIGN_OR_RETURN(AlignedMemory memory, Allocate(bytes, kHugePage));
  // The kernel may refuse; then the pages are small.
  madvise(memory.get(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return memory;
}

// Copies, by threads that start together.
namespace {

using Clock = std::chrono::steady_clock;

// from, to: aligned to kMemoryAlignment.
void CopyStreamed(const std::byte* from, std::byte* to, int64_t bytes) {
  int64_t i = 0;
#ifdef __x86_64__
  constexpr int64_t kVector = sizeof(__m128i);
  for (; i + kVector <= bytes; i += kVector) {
    _mm_stream_si128(
        reinterpret_cast<__m128i*>(to + i),
        _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();
#endif
  std::memcpy(to + i, from + i, static_cast<size_t>(bytes - i));
}

TimedCalls RunCopier(Copier& copier, std::barrier<>& start, int warmup,
                     int iterations, CopyStores stores) {
  TimedCalls result;
  copier.Prepare();
  for (int i = 0; i < warmup; ++i) copier.Copy(stores);
  for (int i = 0; i < iterations; ++i) {
    start.arrive_and_wait();
    const Clock::time_point begin = Clock::now();
    copier.Copy(stores);
    result.seconds.push_back(
        std::chrono::duration<double>(Clock::now() - begin).count());
  }
  result.wrong = copier.CountWrong();
  return result;
}

}  // namespace

absl::StatusOr<Copier> Copier::Create(int64_t half) {
  Copier copier;
  copier.half_ = half;
  copier.apart_ = RoundUpToAlignment(half);
  LOCKSTEP_ASSIGN_OR_RETURN(copier.memory_, AllocateHuge(2 * copier.apart_));
  return copier;
}

void Copier::Prepare() {
  std::memset(source(), 0x5a, static_cast<size_t>(half_));
  std::memset(target(), 0xa5, static_cast<size_t>(half_));
}

void Copier::Copy(CopyStores stores) {
  asm volatile("" ::: "memory");
  if (stores == CopyStores::kStreamed) {
    CopyStreamed(source(), target(), half_);
  } else {
    std::memcpy(target(), source(), static_cast<size_t>(half_));
  }
  asm volatile("" ::: "memory");
}

int64_t Copier::CountWrong() const {
  if (std::memcmp(source(), target(), static_cast<size_t>(half_)) == 0) {
    return 0;
  }
  int64_t wrong = 0;
  for (int64_t i = 0; i < half_; ++i) wrong += source()[i] != target()[i];
  return wrong;
}

absl::StatusOr<TimedCalls> TimeCopies(int threads, int64_t bytes, int warmup,
                                      int iterations, CopyStores stores) {
  std::vector<Copier> copiers;
  for (int i = 0; i < threads; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(Copier copier, Copier::Create(std::max<int64_t>(
                                                 bytes / threads / 2, 1)));
    copiers.push_back(std::move(copier));
  }
  return TimeTogether(copiers.size(), [&](size_t i, std::barrier<>& start) {
    return RunCopier(copiers[i], start, warmup, iterations, stores);
  });
}

// Updates in place, by threads that start together.
namespace {

// Add 1 to whole vectors, and return the number of values updated. They are
// intrinsics, because a compiler may leave loops without vectors.
#ifdef __x86_64__
__attribute__((target("avx512f"))) int64_t AddOneAvx512(float* values,
                                                        int64_t count) {
  const __m512 one = _mm512_set1_ps(1);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm512_storeu_ps(values + i,
                     _mm512_add_ps(_mm512_loadu_ps(values + i), one));
  }
  return i;
}

__attribute__((target("avx2"))) int64_t AddOneAvx2(float* values,
                                                   int64_t count) {
  const __m256 one = _mm256_set1_ps(1);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(values + i,
                     _mm256_add_ps(_mm256_loadu_ps(values + i), one));
  }
  return i;
}
#endif

void AddOne(float* values, int64_t count) {
  int64_t i = 0;
#ifdef __x86_64__
  const VectorUnit unit = BestVectorUnit();
  if (unit == VectorUnit::kAvx512) i = AddOneAvx512(values, count);
  if (unit == VectorUnit::kAvx2) i = AddOneAvx2(values, count);
#endif
  for (; i < count; ++i) values[i] += 1;
}

// memory: [calls, stride]. The first `count` values of each call are updated.
TimedCalls RunUpdater(float* memory, int64_t stride, int64_t count, int calls,
                      std::barrier<>& start) {
  TimedCalls result;
  std::fill_n(memory, stride * calls, 1.0f);
  start.arrive_and_wait();
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < calls; ++i) {
    AddOne(memory + i * stride, count);
    const Clock::time_point end = Clock::now();
    result.seconds.push_back(
        std::chrono::duration<double>(end - begin).count());
    begin = end;
  }
  for (int i = 0; i < calls; ++i) {
    const float* const call = memory + i * stride;
    result.wrong += count - std::count(call, call + count, 2.0f);
  }
  return result;
}

}  // namespace

absl::StatusOr<TimedCalls> Updater::Time(int64_t bytes, int calls) {
  constexpr int64_t kFloat = sizeof(float);
  const auto threads = static_cast<int64_t>(memory_.size());
  const int64_t part = std::max<int64_t>(1, bytes / threads / kFloat);
  const int64_t stride = RoundUpToAlignment(part * kFloat) / kFloat;
  if (const int64_t size = stride * calls * kFloat; size > size_) {
    for (AlignedMemory& memory : memory_) {
      memory.reset();
      LOCKSTEP_ASSIGN_OR_RETURN(memory, AllocateHuge(size));
    }
    size_ = size;
  }
  return TimeTogether(memory_.size(), [&](size_t i, std::barrier<>& start) {
    return RunUpdater(reinterpret_cast<float*>(memory_[i].get()), stride, part,
                      calls, start);
  });
}

}  // namespace lockstep::benchmarks
