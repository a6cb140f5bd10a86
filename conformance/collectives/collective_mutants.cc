#include "conformance/collectives/collective_mutants.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"
#include "base/slice.h"

namespace lockstep {
namespace {

constexpr int kRanks = 3;

std::byte* LastElement(const Buffer& buffer) {
  return buffer.Part(buffer.count - 1, 0).bytes();
}

void SwapEnds(const Buffer& buffer) {
  const int64_t element = SizeOf(buffer.type);
  std::swap_ranges(buffer.bytes(), buffer.bytes() + element,
                   LastElement(buffer));
}

// Whether the mutation must show in the case, in a group of three.
bool ShowsIn(CollectiveMutation mutation, const CollectiveCase& call) {
  if (call.operation == Operation::kBarrier || call.count < 3) return false;
  // Of small sets of special values, many stay the same.
  if (call.values == ValueKind::kSpecial) return false;
  switch (mutation) {
    case CollectiveMutation::kSwappedChunks:
    case CollectiveMutation::kOneTooMany:
      return true;
    case CollectiveMutation::kLostTail:
      // In place, what was there may be right already.
      return !call.in_place;
    case CollectiveMutation::kStaleBuffer:
      // The last rank must get an output, or be the one that does.
      return !HasRoot(call.operation) ||
             (call.operation == Operation::kReduce ||
                      call.operation == Operation::kGather
                  ? call.root == 2
              : call.operation == Operation::kSend ? DestinationOf(call, 3) == 2
                                                   : call.root != 2);
    case CollectiveMutation::kWrongRoot:
      // In place, the root's own input may be the extreme already.
      return HasRoot(call.operation) && call.operation != Operation::kSend &&
             !(call.operation == Operation::kReduce && call.in_place &&
               (call.op == ReduceOp::kMin || call.op == ReduceOp::kMax));
    case CollectiveMutation::kDoubleCount:
      return Reduces(call.operation) && call.op != ReduceOp::kMin &&
             call.op != ReduceOp::kMax && call.count > 3;
    case CollectiveMutation::kWritesInput:
      return !call.in_place && call.operation != Operation::kBroadcast;
    case CollectiveMutation::kOrderOfArrival:
      return call.operation == Operation::kAllReduce && call.count > 3 &&
             (call.type == DataType::kFloat32 ||
              call.type == DataType::kFloat64) &&
             call.op != ReduceOp::kMin && call.op != ReduceOp::kMax;
    case CollectiveMutation::kUnscaledAverage:
      return Reduces(call.operation) && call.op == ReduceOp::kAverage;
    case CollectiveMutation::kOrderBySize:
      return call.uniform &&
             (call.type == DataType::kFloat32 ||
              call.type == DataType::kFloat64) &&
             call.op != ReduceOp::kMin && call.op != ReduceOp::kMax;
  }
  return false;
}

// ", as if ..." at the end of what a check says; all of it if there is none.
std::string CauseIn(const std::string& diagnosis) {
  const size_t begin = diagnosis.find(", as if ");
  return begin == std::string::npos ? diagnosis : diagnosis.substr(begin);
}

// What the ranks say together: of those that name the same cause, the first.
absl::StatusOr<Caught> Together(const std::vector<absl::Status>& ranks) {
  Caught all;
  std::set<std::string> checks, causes;
  for (const absl::Status& status : ranks) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Caught caught, CaughtBy(status));
    if (caught.checks.empty()) continue;
    if (checks.insert(caught.checks[0]).second) {
      all.checks.push_back(caught.checks[0]);
    }
    if (!causes.insert(CauseIn(caught.diagnosis)).second) continue;
    absl::StrAppend(&all.diagnosis, all.diagnosis.empty() ? "" : "; ",
                    caught.diagnosis);
  }
  return all;
}

std::vector<CollectiveCase> CasesOf(CollectiveMutation mutation) {
  std::vector<CollectiveCase> cases = CollectiveCases(kRanks);
  std::erase_if(cases, [&](const CollectiveCase& call) {
    return !ShowsIn(mutation, call);
  });
  return cases;
}

// What the check says of each case on each rank: by case, then by rank. Errors:
// those of a case that are not kDataLoss.
absl::StatusOr<std::vector<std::vector<absl::Status>>> CheckMutated(
    CollectiveMutation mutation, std::span<const CollectiveCase> cases) {
  std::vector<std::vector<absl::Status>> by_case(
      cases.size(), std::vector<absl::Status>(kRanks));
  const auto statuses = RunRanks(
      Backend::kThreads, kRanks, [&](Communicator& real) -> absl::Status {
        MutatedCommunicator mutated(real, mutation);
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<CollectiveChecker> checker,
            CollectiveChecker::Create(mutated, Memory::kOrdinary));
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

// Some rank names it; of kWrongRoot, some rank has the check and some the
// words: it shows on two ranks, one that does not write its output and one that
// should not write.
absl::Status ExpectNamedBySome(const Mutant& mutant,
                               CollectiveMutation mutation,
                               const std::vector<absl::Status>& ranks,
                               const CollectiveCase& call) {
  Mutant words = mutant;
  if (mutation == CollectiveMutation::kWrongRoot) words.says = "";
  absl::Status wrong = absl::InternalError("there are no ranks");
  bool says = false;
  for (const absl::Status& rank : ranks) {
    says = says || absl::StrContains(rank.message(), mutant.says);
    const absl::Status named = ExpectNamed(words, rank, ToString(call));
    if (named.ok() || !wrong.ok()) wrong = named;
  }
  if (!wrong.ok() || says) return wrong;
  return absl::InternalError(
      absl::StrCat(ToString(call), ": no rank says '", mutant.says, "'"));
}

Mutant Planted(Mutant mutant, CollectiveMutation mutation) {
  mutant.plant = [mutation]() -> absl::StatusOr<Caught> {
    const std::vector<CollectiveCase> cases = CasesOf(mutation);
    if (cases.empty()) return absl::InternalError("it shows in no case");
    LOCKSTEP_ASSIGN_OR_RETURN(const auto by_case,
                              CheckMutated(mutation, {cases.data(), 1}));
    return Together(by_case[0]);
  };
  mutant.plant_everywhere = [mutant, mutation]() -> absl::StatusOr<int64_t> {
    const std::vector<CollectiveCase> cases = SliceOf(CasesOf(mutation), 8);
    LOCKSTEP_ASSIGN_OR_RETURN(const auto by_case,
                              CheckMutated(mutation, cases));
    for (size_t i = 0; i < cases.size(); ++i) {
      LOCKSTEP_RETURN_IF_ERROR(
          ExpectNamedBySome(mutant, mutation, by_case[i], cases[i]));
    }
    return std::ssize(cases);
  };
  return mutant;
}

}  // namespace

bool MutatedCommunicator::GetsOutput(const Collective& call) const {
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

absl::Status MutatedCommunicator::RunWithRankZeroTwice(const Collective& call) {
  if (rank() != 0 || call.input.count == 0) return inner().Run(call);
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
  return inner().Run(wrong);
}

absl::Status MutatedCommunicator::RunWithoutOutput(const Collective& call) {
  std::vector<std::byte> scratch(static_cast<size_t>(call.output.size_bytes()) +
                                 1);
  Collective wrong = call;
  wrong.output.data = scratch.data();
  if (call.operation == Operation::kBroadcast)
    wrong.input.data = scratch.data();
  return inner().Run(wrong);
}

absl::Status MutatedCommunicator::RunInReverseOrder(const Collective& call) {
  if (reversed_ == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(reversed_, inner().Split(0, -rank()));
  }
  return reversed_->Run(call);
}

absl::Status MutatedCommunicator::Run(const Collective& call) {
  const bool gets_output = GetsOutput(call);
  Collective changed = call;
  switch (mutation_) {
    case CollectiveMutation::kSwappedChunks: {
      LOCKSTEP_RETURN_IF_ERROR(inner().Run(call));
      if (gets_output) SwapEnds(call.output);
      return absl::OkStatus();
    }
    case CollectiveMutation::kLostTail: {
      std::byte old[8] = {};
      const auto size = static_cast<size_t>(SizeOf(call.output.type));
      if (gets_output) std::memcpy(old, LastElement(call.output), size);
      LOCKSTEP_RETURN_IF_ERROR(inner().Run(call));
      if (gets_output) std::memcpy(LastElement(call.output), old, size);
      return absl::OkStatus();
    }
    case CollectiveMutation::kWrongRoot:
      if (call.operation != Operation::kSend &&
          call.operation != Operation::kReceive) {
        changed.peer = (call.peer + 1) % world_size();
      }
      return inner().Run(changed);
    case CollectiveMutation::kDoubleCount:
      return Reduces(call.operation) ? RunWithRankZeroTwice(call)
                                     : inner().Run(call);
    case CollectiveMutation::kStaleBuffer:
      return gets_output && rank() == world_size() - 1 ? RunWithoutOutput(call)
                                                       : inner().Run(call);
    case CollectiveMutation::kOneTooMany:
      LOCKSTEP_RETURN_IF_ERROR(inner().Run(call));
      if (gets_output)
        call.output.bytes()[call.output.size_bytes()] ^= std::byte{1};
      return absl::OkStatus();
    case CollectiveMutation::kWritesInput: {
      LOCKSTEP_RETURN_IF_ERROR(inner().Run(call));
      if (call.input.count > 0) {
        auto* input =
            static_cast<std::byte*>(const_cast<void*>(call.input.data));
        input[0] ^= std::byte{1};
      }
      return absl::OkStatus();
    }
    case CollectiveMutation::kOrderOfArrival:
      return call.operation == Operation::kAllReduce ? RunInReverseOrder(call)
                                                     : inner().Run(call);
    case CollectiveMutation::kUnscaledAverage:
      if (call.op == ReduceOp::kAverage) changed.op = ReduceOp::kSum;
      return inner().Run(changed);
    case CollectiveMutation::kOrderBySize:
      changed.uniform = false;
      return inner().Run(changed);
  }
  return absl::InternalError("no such mutation");
}

MutantSuite CollectiveMutants() {
  using enum CollectiveMutation;
  return MakeSuite(
      "collectives", kCollectiveChecks,
      {Planted({"SwappedChunks",
                "the first and the last element change places",
                {"Output"},
                "as if the first and the last element had changed places"},
               kSwappedChunks),
       Planted({"LostTail",
                "the last element is not written",
                {"Output"},
                "as if the last element had not been written"},
               kLostTail),
       Planted({"WrongRoot",
                "the rank after the root takes its part",
                {"Output", "Beside"},
                "were the root"},
               kWrongRoot),
       Planted({"DoubleCount",
                "rank 0's input is reduced twice",
                {"Output"},
                "as if rank 0's input were taken twice"},
               kDoubleCount),
       Planted({"StaleBuffer",
                "the last rank keeps what it had",
                {"Output"},
                "as if nothing had been written"},
               kStaleBuffer),
       Planted({"OneTooMany",
                "one byte after the output is written",
                {"Beside"},
                " beside the "},
               kOneTooMany),
       Planted({"WritesInput",
                "the first byte of the input changes",
                {"Input"},
                "the input was written"},
               kWritesInput),
       Planted({"OrderOfArrival",
                "the ranks are added in another order",
                {"Output"},
                "as if the ranks were added in the order"},
               kOrderOfArrival),
       Planted({"UnscaledAverage",
                "an average is the sum",
                {"Output"},
                "as if it were the sum, not the average"},
               kUnscaledAverage),
       Planted({"OrderBySize",
                "a uniform call adds in the order of its size",
                {"Output"},
                "as if it were added in the order of its size"},
               kOrderBySize)});
}

}  // namespace lockstep
