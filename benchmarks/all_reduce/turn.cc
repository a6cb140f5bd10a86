// Fill, time, check.
#include "benchmarks/all_reduce/turn.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

template <typename T>
void Append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
bool Take(absl::string_view& bytes, T& value) {
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return true;
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

absl::StatusOr<TurnResult> TurnTaker::Take(const TurnRequest& request) {
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
  TurnResult result;
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

absl::StatusOr<TurnResult> CombineRanks(std::span<const TurnResult> results) {
  TurnResult all = results[0];
  for (const TurnResult& result : results.subspan(1)) {
    if (result.seconds.size() != all.seconds.size()) {
      return absl::DataLossError(
          absl::StrCat("one rank timed ", all.seconds.size(),
                       " calls, another ", result.seconds.size()));
    }
    all.wrong += result.wrong;
    for (size_t i = 0; i < all.seconds.size(); ++i) {
      all.seconds[i] = std::max(all.seconds[i], result.seconds[i]);
    }
  }
  return all;
}

std::string Serialize(const TurnResult& result) {
  std::string bytes;
  Append(bytes, result.wrong);
  for (const double seconds : result.seconds) Append(bytes, seconds);
  return bytes;
}

absl::StatusOr<TurnResult> ParseResult(absl::string_view bytes) {
  TurnResult result;
  if (!Take(bytes, result.wrong) || bytes.size() % sizeof(double) != 0) {
    return absl::DataLossError("a rank's answer is cut short");
  }
  double seconds;
  while (Take(bytes, seconds)) result.seconds.push_back(seconds);
  return result;
}

// Turns as messages.

std::string Serialize(const TurnRequest& request) {
  return std::string(reinterpret_cast<const char*>(&request), sizeof(request));
}

absl::StatusOr<TurnRequest> ParseRequest(absl::string_view bytes) {
  TurnRequest request;
  if (bytes.size() != sizeof(request)) {
    return absl::DataLossError("a message of another size than expected");
  }
  std::memcpy(&request, bytes.data(), sizeof(request));
  return request;
}

absl::Status ServeTurns(
    const std::string& listener, const RankHello& hello,
    const std::function<absl::StatusOr<TurnResult>(const TurnRequest&)>& take) {
  return ServeMessages(
      listener, hello,
      [&](absl::string_view message) -> absl::StatusOr<std::string> {
        LOCKSTEP_ASSIGN_OR_RETURN(const TurnRequest request,
                                  ParseRequest(message));
        LOCKSTEP_ASSIGN_OR_RETURN(const TurnResult result, take(request));
        return Serialize(result);
      });
}

absl::Status ServeTurns(const std::string& listener,
                        AllReduceSubject& subject) {
  TurnTaker taker(subject);
  return ServeTurns(
      listener, {subject.rank(), subject.world_size()},
      [&](const TurnRequest& request) { return taker.Take(request); });
}

}  // namespace lockstep::benchmarks
