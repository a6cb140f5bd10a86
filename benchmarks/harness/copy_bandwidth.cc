// memcpy, by threads that start together.
#include "benchmarks/harness/copy_bandwidth.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kAlignment = 64;

TimedCalls RunCopier(Copier& copier, std::barrier<>& start, int warmup,
                     int iterations) {
  TimedCalls result;
  copier.Prepare();
  for (int i = 0; i < warmup; ++i) copier.Copy();
  for (int i = 0; i < iterations; ++i) {
    start.arrive_and_wait();
    const Clock::time_point begin = Clock::now();
    copier.Copy();
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
  copier.apart_ = (half + kAlignment - 1) / kAlignment * kAlignment;
  copier.memory_.reset(static_cast<std::byte*>(
      std::aligned_alloc(kAlignment, 2 * copier.apart_)));
  if (copier.memory_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", 2 * half, " bytes"));
  }
  return copier;
}

void Copier::Prepare() {
  std::memset(source(), 0x5a, static_cast<size_t>(half_));
  std::memset(target(), 0xa5, static_cast<size_t>(half_));
}

void Copier::Copy() {
  asm volatile("" ::: "memory");
  std::memcpy(target(), source(), static_cast<size_t>(half_));
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
                                      int iterations) {
  std::vector<Copier> copiers;
  for (int i = 0; i < threads; ++i) {
    absl::StatusOr<Copier> copier =
        Copier::Create(std::max<int64_t>(bytes / threads / 2, 1));
    if (!copier.ok()) return copier.status();
    copiers.push_back(*std::move(copier));
  }
  std::barrier<> start(threads);
  std::vector<TimedCalls> results(copiers.size());
  std::vector<std::thread> running;
  for (size_t i = 0; i < copiers.size(); ++i) {
    running.emplace_back([&, i] {
      results[i] = RunCopier(copiers[i], start, warmup, iterations);
    });
  }
  for (std::thread& thread : running) thread.join();
  return SlowestOf(results);
}

}  // namespace lockstep::benchmarks
