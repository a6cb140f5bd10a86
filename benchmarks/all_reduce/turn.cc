#include "benchmarks/all_reduce/turn.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/exact_pattern.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/collective.h"

namespace lockstep::benchmarks {
namespace {

constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The buffers of a turn's iterations in one piece of memory: inputs first, and
// outputs behind them where they are apart.
class BufferPool {
 public:
  BufferPool(const TurnRequest& request, std::byte* memory)
      : request_(request),
        stride_(RoundUp(request.count * SizeOf(request.type))),
        memory_(memory) {}

  int64_t bytes() const {
    return stride_ * request_.iterations * (request_.in_place ? 1 : 2);
  }
  Buffer Input(int64_t i) const { return At(i); }
  Buffer Output(int64_t i) const {
    return At(request_.in_place ? i : i + request_.iterations);
  }

 private:
  Buffer At(int64_t i) const {
    return {memory_ + i * stride_, request_.count, request_.type};
  }

  const TurnRequest& request_;
  const int64_t stride_;
  std::byte* const memory_;
};

void Fill(const TurnRequest& request, const BufferPool& pool,
          ExactPattern& pattern) {
  for (int i = 0; i < request.iterations; ++i) {
    pattern.Fill(request.first + i, pool.Input(i));
    // Nothing of an earlier turn's answers is left.
    if (!request.in_place) {
      const Buffer output = pool.Output(i);
      std::memset(output.data, 0xff, static_cast<size_t>(output.size_bytes()));
    }
  }
}

}  // namespace

absl::StatusOr<std::span<std::byte>> TurnTaker::Memory(BufferKind kind,
                                                       int64_t bytes) {
  std::span<std::byte>& memory = memory_[static_cast<int>(kind)];
  if (static_cast<int64_t>(memory.size()) >= bytes) return memory;
  if (kind == BufferKind::kGroup) {
    LOCKSTEP_ASSIGN_OR_RETURN(memory, subject_.GroupMemory(bytes));
    return memory;
  }
  ordinary_.reset();
  ordinary_.reset(
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, RoundUp(bytes))));
  if (ordinary_ == nullptr) {
    memory = {};
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", bytes, " bytes"));
  }
  memory = {ordinary_.get(), static_cast<size_t>(bytes)};
  return memory;
}

absl::StatusOr<TimedCalls> TurnTaker::Take(const TurnRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::span<std::byte> memory,
      Memory(request.buffers, BufferPool(request, nullptr).bytes()));
  LOCKSTEP_ASSIGN_OR_RETURN(
      ExactPattern pattern,
      ExactPattern::Create(request.type, request.op, subject_.rank(),
                           subject_.world_size()));
  const BufferPool pool(request, memory.data());
  const auto call = [&](int i) {
    return subject_.AllReduce(pool.Input(i), pool.Output(i), request.op);
  };
  if (request.warmup > 0) Fill(request, pool, pattern);
  for (int i = 0; i < request.warmup; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(call(i % request.iterations));
  }
  Fill(request, pool, pattern);
  TimedCalls result;
  result.seconds.resize(static_cast<size_t>(request.iterations));
  LOCKSTEP_RETURN_IF_ERROR(subject_.Barrier());
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < request.iterations; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(call(i));
    const Clock::time_point end = Clock::now();
    result.seconds[static_cast<size_t>(i)] =
        std::chrono::duration<double>(end - begin).count();
    begin = end;
  }
  for (int i = 0; i < request.iterations; ++i) {
    result.wrong += pattern.CountWrong(request.first + i, pool.Output(i));
  }
  return result;
}

absl::Status ServeSubject(const std::string& listener,
                          AllReduceSubject& subject) {
  TurnTaker taker(subject);
  return ServeTurns<TurnRequest>(
      listener, {subject.rank(), subject.world_size()},
      [&taker](const TurnRequest& request) { return taker.Take(request); });
}

}  // namespace lockstep::benchmarks
