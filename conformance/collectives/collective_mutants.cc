// Communicators with one planted fault each.
#include "conformance/collectives/collective_mutants.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"

namespace lockstep {
namespace {

std::byte* LastElement(const Buffer& buffer) {
  return buffer.Part(buffer.count - 1, 0).bytes();
}

void SwapEnds(const Buffer& buffer) {
  const int64_t element = SizeOf(buffer.type);
  std::swap_ranges(buffer.bytes(), buffer.bytes() + element,
                   LastElement(buffer));
}

}  // namespace

const char* Name(CollectiveFault fault) {
  switch (fault) {
    case CollectiveFault::kSwappedChunks:
      return "SwappedChunks";
    case CollectiveFault::kLostTail:
      return "LostTail";
    case CollectiveFault::kWrongRoot:
      return "WrongRoot";
    case CollectiveFault::kDoubleCount:
      return "DoubleCount";
    case CollectiveFault::kStaleBuffer:
      return "StaleBuffer";
    case CollectiveFault::kOneTooMany:
      return "OneTooMany";
    case CollectiveFault::kWritesInput:
      return "WritesInput";
    case CollectiveFault::kOrderOfArrival:
      return "OrderOfArrival";
    case CollectiveFault::kUnscaledAverage:
      return "UnscaledAverage";
    case CollectiveFault::kOrderBySize:
      break;
  }
  return "OrderBySize";
}

bool ShowsIn(CollectiveFault fault, const CollectiveCase& call) {
  if (call.operation == Operation::kBarrier || call.count < 3) return false;
  // Of small sets of special values, many stay the same.
  if (call.values == Values::kSpecial) return false;
  switch (fault) {
    case CollectiveFault::kSwappedChunks:
    case CollectiveFault::kOneTooMany:
      return true;
    case CollectiveFault::kLostTail:
      // In place, what was there may be right already.
      return !call.in_place;
    case CollectiveFault::kStaleBuffer:
      // The last rank must get an output, or be the one that does.
      return !HasRoot(call.operation) ||
             (call.operation == Operation::kReduce ||
                      call.operation == Operation::kGather
                  ? call.root == 2
              : call.operation == Operation::kSend ? DestinationOf(call, 3) == 2
                                                   : call.root != 2);
    case CollectiveFault::kWrongRoot:
      // In place, the root's own input may be the extreme already.
      return HasRoot(call.operation) && call.operation != Operation::kSend &&
             !(call.operation == Operation::kReduce && call.in_place &&
               (call.op == ReduceOp::kMin || call.op == ReduceOp::kMax));
    case CollectiveFault::kDoubleCount:
      return Reduces(call.operation) && call.op != ReduceOp::kMin &&
             call.op != ReduceOp::kMax && call.count > 3;
    case CollectiveFault::kWritesInput:
      return !call.in_place && call.operation != Operation::kBroadcast;
    case CollectiveFault::kOrderOfArrival:
      return call.operation == Operation::kAllReduce && call.count > 3 &&
             (call.type == DataType::kFloat32 ||
              call.type == DataType::kFloat64) &&
             call.op != ReduceOp::kMin && call.op != ReduceOp::kMax;
    case CollectiveFault::kUnscaledAverage:
      return Reduces(call.operation) && call.op == ReduceOp::kAverage;
    case CollectiveFault::kOrderBySize:
      return call.uniform &&
             (call.type == DataType::kFloat32 ||
              call.type == DataType::kFloat64) &&
             call.op != ReduceOp::kMin && call.op != ReduceOp::kMax;
  }
  return false;
}

bool FaultyCommunicator::GetsOutput(const Collective& call) const {
  switch (call.operation) {
    case Operation::kReduce:
    case Operation::kGather:
      return rank() == call.peer;
    case Operation::kSend:
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
      return false;
    default:
      return call.output.count > 0;
  }
}

absl::Status FaultyCommunicator::RunWithRankZeroTwice(const Collective& call) {
  if (rank() != 0 || call.input.count == 0) return real_.Run(call);
  const size_t count = static_cast<size_t>(call.input.count);
  // An average cannot overflow, so it may not hold twice an integer; a sum
  // wraps.
  const ReduceOp op = call.op == ReduceOp::kAverage ? ReduceOp::kSum : call.op;
  const Reduction once(call.input.type, op, /*world_size=*/1);
  std::vector<std::byte> sums(count * 8);
  once.Begin(call.input.data, sums.data(), call.input.count);
  std::vector<std::byte> twice(count * 8);
  once.Accumulate(sums.data(), call.input.data, twice.data(), call.input.count);
  std::vector<std::byte> input(count * 8);
  once.Finish(twice.data(), input.data(), call.input.count);
  Collective wrong = call;
  wrong.input = {input.data(), call.input.count, call.input.type};
  return real_.Run(wrong);
}

absl::Status FaultyCommunicator::RunWithoutOutput(const Collective& call) {
  std::vector<std::byte> scratch(static_cast<size_t>(call.output.size_bytes()) +
                                 1);
  Collective wrong = call;
  wrong.output.data = scratch.data();
  if (call.operation == Operation::kBroadcast)
    wrong.input.data = scratch.data();
  return real_.Run(wrong);
}

absl::Status FaultyCommunicator::RunInReverseOrder(Collective call) {
  if (reversed_ == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(reversed_, real_.Split(0, -rank()));
  }
  return reversed_->Run(call);
}

absl::Status FaultyCommunicator::Run(const Collective& call) {
  const bool gets_output = GetsOutput(call);
  Collective changed = call;
  switch (fault_) {
    case CollectiveFault::kSwappedChunks: {
      LOCKSTEP_RETURN_IF_ERROR(real_.Run(call));
      if (gets_output) SwapEnds(call.output);
      return absl::OkStatus();
    }
    case CollectiveFault::kLostTail: {
      std::byte old[8] = {};
      const auto size = static_cast<size_t>(SizeOf(call.output.type));
      if (gets_output) std::memcpy(old, LastElement(call.output), size);
      LOCKSTEP_RETURN_IF_ERROR(real_.Run(call));
      if (gets_output) std::memcpy(LastElement(call.output), old, size);
      return absl::OkStatus();
    }
    case CollectiveFault::kWrongRoot:
      if (call.operation != Operation::kSend &&
          call.operation != Operation::kReceive) {
        changed.peer = (call.peer + 1) % world_size();
      }
      return real_.Run(changed);
    case CollectiveFault::kDoubleCount:
      return Reduces(call.operation) ? RunWithRankZeroTwice(call)
                                     : real_.Run(call);
    case CollectiveFault::kStaleBuffer:
      return gets_output && rank() == world_size() - 1 ? RunWithoutOutput(call)
                                                       : real_.Run(call);
    case CollectiveFault::kOneTooMany:
      LOCKSTEP_RETURN_IF_ERROR(real_.Run(call));
      if (gets_output)
        call.output.bytes()[call.output.size_bytes()] ^= std::byte{1};
      return absl::OkStatus();
    case CollectiveFault::kWritesInput: {
      LOCKSTEP_RETURN_IF_ERROR(real_.Run(call));
      if (call.input.count > 0) {
        auto* input =
            static_cast<std::byte*>(const_cast<void*>(call.input.data));
        input[0] ^= std::byte{1};
      }
      return absl::OkStatus();
    }
    case CollectiveFault::kOrderOfArrival:
      return call.operation == Operation::kAllReduce ? RunInReverseOrder(call)
                                                     : real_.Run(call);
    case CollectiveFault::kUnscaledAverage:
      if (call.op == ReduceOp::kAverage) changed.op = ReduceOp::kSum;
      return real_.Run(changed);
    case CollectiveFault::kOrderBySize:
      changed.uniform = false;
      return real_.Run(changed);
  }
  return absl::InternalError("no such fault");
}

// Plants faults in groups and asks the suite.

std::vector<CollectiveBug> AllCollectiveBugs() {
  return {
      {CollectiveFault::kSwappedChunks,
       "the first and the last element change places", "Output",
       "as if the first and the last element had changed places"},
      {CollectiveFault::kLostTail, "the last element is not written", "Output",
       "as if the last element had not been written"},
      {CollectiveFault::kWrongRoot,
       "the rank after the root takes its part",
       "Output",
       "were the root",
       {"Beside"}},
      {CollectiveFault::kDoubleCount, "rank 0's input is reduced twice",
       "Output", "as if rank 0's input were taken twice"},
      {CollectiveFault::kStaleBuffer, "the last rank keeps what it had",
       "Output", "as if nothing had been written"},
      {CollectiveFault::kOneTooMany, "one byte after the output is written",
       "Beside", " beside the "},
      {CollectiveFault::kWritesInput, "the first byte of the input changes",
       "Input", "the input was written"},
      {CollectiveFault::kOrderOfArrival, "the ranks are added in another order",
       "Output", "as if the ranks were added in the order"},
      {CollectiveFault::kUnscaledAverage, "an average is the sum", "Output",
       "as if it were the sum, not the average"},
      {CollectiveFault::kOrderBySize,
       "a uniform call adds in the order of its size", "Output",
       "as if it were added in the order of its size"},
  };
}

absl::StatusOr<std::vector<std::vector<absl::Status>>> CheckFaulty(
    CollectiveFault fault, std::span<const CollectiveCase> cases) {
  std::vector<std::vector<absl::Status>> by_case(
      cases.size(), std::vector<absl::Status>(kFaultyRanks));
  const auto statuses = RunRanks(
      Backend::kThreads, kFaultyRanks, [&](Communicator& real) -> absl::Status {
        FaultyCommunicator faulty(real, fault);
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<CollectiveChecker> checker,
            CollectiveChecker::Create(faulty, Memory::kOrdinary));
        for (size_t i = 0; i < cases.size(); ++i) {
          absl::Status& status = by_case[i][static_cast<size_t>(real.rank())];
          status = checker->Check(cases[i]);
          if (!status.ok() && status.code() != absl::StatusCode::kDataLoss) {
            return status;
          }
        }
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) LOCKSTEP_RETURN_IF_ERROR(status);
  return by_case;
}

}  // namespace lockstep
