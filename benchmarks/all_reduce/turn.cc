#include "benchmarks/all_reduce/turn.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/exact_pattern.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kRoot = 0;  // The root of broadcasts.

// One rank's calls of a turn, and the contents of their buffers. All buffers
// are in one piece of memory: first the inputs, and then the outputs if calls
// are out of place.
class TurnCalls {
 public:
  // buffers: the number of calls that have their own buffers.
  TurnCalls(const TurnRequest& request, int rank, int world_size, int buffers)
      : request_(request),
        rank_(rank),
        world_size_(world_size),
        buffers_(buffers),
        part_(request.count / world_size),
        stride_(RoundUpToAlignment(request.count * SizeOf(request.type))) {}

  int64_t bytes() const {
    return stride_ * buffers_ * (request_.in_place ? 1 : 2);
  }

  // Returns call i, with its buffers in `memory`.
  Collective Call(int64_t i, std::byte* memory) const {
    const Buffer input = Input(i, memory);
    const Buffer output = Output(i, memory);
    switch (request_.operation) {
      case Operation::kReduceScatter:
        return Collective::ReduceScatter(input, output, request_.op);
      case Operation::kAllGather:
        return Collective::AllGather(input, output);
      case Operation::kBroadcast:
        return Collective::Broadcast(output, kRoot);
      case Operation::kAllToAll:
        return Collective::AllToAll(input, output);
      default:
        return Collective::AllReduce(input, output, request_.op);
    }
  }

  // Writes this rank's input of call i. Overwrites all answers of earlier
  // turns.
  void Fill(int64_t i, ExactPattern& pattern, std::byte* memory) const {
    const int64_t iteration = request_.first + i;
    const Buffer input = Input(i, memory);
    if (!request_.in_place || !Reduces(request_.operation)) {
      const Buffer output = Output(i, memory);
      std::memset(output.data, 0xff, static_cast<size_t>(output.size_bytes()));
    }
    switch (request_.operation) {
      case Operation::kAllGather:
        return pattern.FillResult(iteration, input, rank_ * part_);
      case Operation::kBroadcast:
        if (rank_ == kRoot) pattern.FillResult(iteration, input, 0);
        return;
      case Operation::kAllToAll:
        return pattern.FillResult(iteration, input, rank_ * request_.count);
      default:
        return pattern.Fill(iteration, input);
    }
  }

  int64_t CountWrong(int64_t i, ExactPattern& pattern,
                     std::byte* memory) const {
    const int64_t iteration = request_.first + i;
    const Buffer output = Output(i, memory);
    if (request_.operation == Operation::kReduceScatter) {
      return pattern.CountWrong(iteration, output, rank_ * part_);
    }
    if (request_.operation != Operation::kAllToAll) {
      return pattern.CountWrong(iteration, output);
    }
    int64_t wrong = 0;
    for (int64_t peer = 0; peer < world_size_; ++peer) {
      wrong += pattern.CountWrong(iteration, output.Part(peer * part_, part_),
                                  peer * request_.count + rank_ * part_);
    }
    return wrong;
  }

 private:
  Buffer Input(int64_t i, std::byte* memory) const {
    const bool part = request_.operation == Operation::kAllGather;
    return At(i, part, memory);
  }
  Buffer Output(int64_t i, std::byte* memory) const {
    const bool part = request_.operation == Operation::kReduceScatter;
    return At(request_.in_place ? i : i + buffers_, part, memory);
  }

  // Returns the whole message at `place`, or one part of it. In place, the part
  // is this rank's; otherwise it is the first.
  Buffer At(int64_t place, bool part, std::byte* memory) const {
    const Buffer whole(memory + place * stride_, request_.count, request_.type);
    if (!part) return whole;
    return whole.Part(request_.in_place ? rank_ * part_ : 0, part_);
  }

  const TurnRequest& request_;
  const int64_t rank_;
  const int64_t world_size_;
  const int64_t buffers_;
  const int64_t part_;
  const int64_t stride_;
};

}  // namespace

TurnRequest RequestOf(const AllReduceSettings& settings, Operation operation,
                      int64_t bytes, const Subject& subject) {
  return {.operation = operation,
          .type = settings.type,
          .op = settings.op,
          .buffers = subject.buffers,
          .peer_algorithm = subject.peer_algorithm,
          .in_place = InPlace(settings, operation, subject.team.kind),
          .count = bytes / SizeOf(settings.type)};
}

absl::StatusOr<std::shared_ptr<std::byte>> TurnTaker::AllocateOrdinary(
    int64_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(AlignedMemory memory, AllocateAligned(bytes));
  return std::shared_ptr<std::byte>(std::move(memory));
}

absl::StatusOr<std::byte*> TurnTaker::Allocate(BufferKind kind, int64_t bytes) {
  GroupBuffer& memory = memory_[static_cast<int>(kind)];
  if (static_cast<int64_t>(memory.bytes().size()) < bytes) {
    memory = GroupBuffer();  // Frees the old memory first.
    if (kind == BufferKind::kGroup) {
      LOCKSTEP_ASSIGN_OR_RETURN(memory, group_.Allocate(bytes));
    } else {
      LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> made,
                                AllocateOrdinary(bytes));
      memory = {made, {made.get(), static_cast<size_t>(bytes)}};
    }
  }
  return memory.bytes().data();
}

absl::StatusOr<AllReduceTurn> TurnTaker::Time(const TurnRequest& request,
                                              CallFunction call) {
  AllReduceTurn turn;
  turn.calls.seconds.resize(static_cast<size_t>(request.iterations));
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < request.iterations; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(call(i));
    const Clock::time_point end = Clock::now();
    turn.calls.seconds[static_cast<size_t>(i)] =
        std::chrono::duration<double>(end - begin).count();
    begin = end;
  }
  return turn;
}

absl::StatusOr<AllReduceTurn> TurnTaker::TakeSupportedTurn(
    const TurnRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(Prepare(request));
  const int buffers = request.iterations + extra_buffers();
  const TurnCalls calls(request, group_.rank(), group_.world_size(), buffers);
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const memory,
                            Allocate(request.buffers, calls.bytes()));
  const auto call = [&](int i) { return group_.Run(calls.Call(i, memory)); };
  if (request.probe) {
    LOCKSTEP_RETURN_IF_ERROR(call(0));
    LOCKSTEP_RETURN_IF_ERROR(group_.Wait());
    AllReduceTurn turn;
    Describe(turn);
    return turn;
  }
  // A collective that only moves data may move the result of any reduction.
  const ReduceOp op = Reduces(request.operation) ? request.op : ReduceOp::kSum;
  LOCKSTEP_ASSIGN_OR_RETURN(
      ExactPattern pattern,
      ExactPattern::Create(request.type, op, group_.rank(),
                           group_.world_size()));
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const host,
                            HostMemoryFor(memory, calls.bytes()));
  const auto fill = [&] {
    for (int i = 0; i < request.iterations; ++i) calls.Fill(i, pattern, host);
    return Upload(memory, host, calls.bytes());
  };
  // A GPU can warm up on any values. A CPU is slow with some values, so its
  // buffers are filled first.
  if (request.warmup > 0 && host == memory) LOCKSTEP_RETURN_IF_ERROR(fill());
  for (int i = 0; i < request.warmup; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(call(i % buffers));
  }
  LOCKSTEP_RETURN_IF_ERROR(group_.Wait());
  LOCKSTEP_RETURN_IF_ERROR(fill());
  LOCKSTEP_RETURN_IF_ERROR(barrier_group_.Barrier());
  LOCKSTEP_ASSIGN_OR_RETURN(AllReduceTurn turn, Time(request, call));
  LOCKSTEP_RETURN_IF_ERROR(group_.Wait());
  Describe(turn);
  LOCKSTEP_RETURN_IF_ERROR(Download(host, memory, calls.bytes()));
  for (int i = 0; i < request.iterations; ++i) {
    turn.calls.wrong += calls.CountWrong(i, pattern, host);
  }
  return turn;
}

absl::StatusOr<AllReduceTurn> TurnTaker::Take(const TurnRequest& request) {
  absl::StatusOr<AllReduceTurn> turn = TakeSupportedTurn(request);
  if (!absl::IsUnimplemented(turn.status())) return turn;
  AllReduceTurn without;
  without.missing = std::string(turn.status().message());
  return without;
}

absl::Status ServeTaker(const std::string& listener, TurnTaker& taker) {
  return ServeTurns<TurnRequest>(
      listener,
      {taker.barrier_group().rank(), taker.barrier_group().world_size()},
      [&taker](const TurnRequest& request) { return taker.Take(request); });
}

absl::Status ServeGroup(const std::string& listener, Communicator& group) {
  TurnTaker taker(group);
  return ServeTaker(listener, taker);
}

namespace {

class PeerTaker : public TurnTaker {
 public:
  explicit PeerTaker(PeerCommunicator& peer) : TurnTaker(peer), peer_(peer) {}

 protected:
  absl::Status Prepare(const TurnRequest& request) override {
    return peer_.SetAlgorithm(request.peer_algorithm);
  }

 private:
  PeerCommunicator& peer_;
};

}  // namespace

absl::Status ServePeer(const std::string& listener, PeerCommunicator& group) {
  PeerTaker taker(group);
  return ServeTaker(listener, taker);
}

int RankMain(int argc, char** argv, int wanted,
             absl::FunctionRef<absl::Status()> run) {
  if (argc != wanted) {
    std::fprintf(stderr, "%s is run by allreduce, not by users\n", argv[0]);
    return 2;
  }
  const absl::Status status = run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace lockstep::benchmarks
