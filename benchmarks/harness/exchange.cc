#include "benchmarks/harness/exchange.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/timed_threads.h"

namespace lockstep::benchmarks {
namespace {

constexpr int64_t kNearBytes = 56;

// A thread's message of one call. `call` is written last.
struct alignas(128) Slot {
  std::atomic<uint64_t> call = 0;
  std::array<std::byte, kNearBytes> near;
  std::array<std::byte, kMostExchanged> far;

  std::byte* data(int64_t bytes) {
    return bytes <= kNearBytes ? near.data() : far.data();
  }
};

// Two slots suffice: a thread is at most one call ahead of another.
using Slots = std::array<Slot, 2>;

// One thread's part in all calls.
class ExchangingThread {
 public:
  ExchangingThread(std::span<Slots> all, size_t own) : all_(all), own_(own) {}

  // Replaces `values` by their sum over all threads.
  void AllReduce(std::span<float> values) {
    const uint64_t call = ++calls_;
    const auto bytes = static_cast<int64_t>(values.size_bytes());
    Slot& mine = all_[own_][call % 2];
    std::memcpy(mine.data(bytes), values.data(), values.size_bytes());
    mine.call.store(call, std::memory_order_release);
    for (size_t i = 0; i < all_.size(); ++i) {
      if (i == own_) continue;
      Slot& other = all_[i][call % 2];
      while (other.call.load(std::memory_order_acquire) != call) {
      }
      const auto* const theirs =
          reinterpret_cast<const float*>(other.data(bytes));
      for (size_t k = 0; k < values.size(); ++k) values[k] += theirs[k];
    }
  }

 private:
  std::span<Slots> all_;
  size_t own_;
  uint64_t calls_ = 0;
};

// memory: [calls, stride]. The first `count` values of each call are summed.
TimedCalls RunExchange(ExchangingThread thread, int threads, float* memory,
                       int64_t stride, int64_t count, int calls,
                       std::barrier<>& start) {
  using Clock = std::chrono::steady_clock;
  const auto values = [&](int64_t call) {
    return std::span(memory + call * stride, static_cast<size_t>(count));
  };
  constexpr int kWarmupCalls = 20;
  start.arrive_and_wait();
  for (int i = 0; i < kWarmupCalls; ++i) thread.AllReduce(values(0));
  std::fill_n(memory, stride * calls, 1.0f);
  start.arrive_and_wait();
  TimedCalls result;
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < calls; ++i) {
    thread.AllReduce(values(i));
    const Clock::time_point end = Clock::now();
    result.seconds.push_back(
        std::chrono::duration<double>(end - begin).count());
    begin = end;
  }
  for (int i = 0; i < calls; ++i) {
    result.wrong +=
        count - std::ranges::count(values(i), static_cast<float>(threads));
  }
  return result;
}

}  // namespace

absl::StatusOr<TimedCalls> TimeExchange(int threads, int64_t bytes, int calls) {
  constexpr int64_t kFloat = sizeof(float);
  const int64_t count = bytes / kFloat;
  const int64_t stride = RoundUpToAlignment(bytes) / kFloat;
  const std::vector<int> cpus = AffinityCpus();
  std::vector<Slots> slots(static_cast<size_t>(threads));
  std::vector<AlignedMemory> memory(slots.size());
  for (AlignedMemory& own : memory) {
    LOCKSTEP_ASSIGN_OR_RETURN(own, AllocateAligned(stride * calls * kFloat));
    std::memset(own.get(), 0, static_cast<size_t>(stride * calls * kFloat));
  }
  return TimeTogether(slots.size(), [&](size_t i, std::barrier<>& start) {
    // A thread that cannot be bound runs where the kernel puts it.
    if (!cpus.empty()) SetAffinity({&cpus[i % cpus.size()], 1});
    return RunExchange(ExchangingThread(slots, i), threads,
                       reinterpret_cast<float*>(memory[i].get()), stride, count,
                       calls, start);
  });
}

}  // namespace lockstep::benchmarks
