// Mutants, as decorators of a group.
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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"

namespace lockstep::conformance {
namespace {

constexpr int kRanks = 3;

using RunWrong = GroupMutant::RunWrong;

bool GetsOutput(const Communicator& group, const Collective& call) {
  switch (call.operation) {
    case Operation::kReduce:
    case Operation::kGather:
      return group.rank() == call.peer;
    case Operation::kSend:
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
    case Operation::kReplay:
      return false;
    default:
      return call.output.count > 0;
  }
}

std::byte* LastElement(const Buffer& buffer) {
  return buffer.Part(buffer.count - 1, 0).bytes();
}

absl::Status SwapEnds(Communicator& real, const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(real.Run(call));
  if (!GetsOutput(real, call)) return absl::OkStatus();
  std::byte* const first = call.output.bytes();
  std::swap_ranges(first, first + SizeOf(call.output.type),
                   LastElement(call.output));
  return absl::OkStatus();
}

absl::Status KeepLastElement(Communicator& real, const Collective& call) {
  if (!GetsOutput(real, call)) return real.Run(call);
  std::byte old[8] = {};
  const auto size = static_cast<size_t>(SizeOf(call.output.type));
  std::memcpy(old, LastElement(call.output), size);
  LOCKSTEP_RETURN_IF_ERROR(real.Run(call));
  std::memcpy(LastElement(call.output), old, size);
  return absl::OkStatus();
}

absl::Status TakeNextForRoot(Communicator& real, const Collective& call) {
  Collective changed = call;
  if (call.operation != Operation::kSend &&
      call.operation != Operation::kReceive) {
    changed.peer = (call.peer + 1) % real.world_size();
  }
  return real.Run(changed);
}

// Runs the call with another input on rank 0.
absl::Status RunWithInput(Communicator& real, const Collective& call,
                          const std::byte* input) {
  Collective wrong = call;
  wrong.input = {input, call.input.count, call.input.type};
  return real.Run(wrong);
}

// Returns rank 0's input reduced with itself.
std::vector<std::byte> Twice(const Collective& call) {
  const size_t count = static_cast<size_t>(call.input.count);
  // An average cannot overflow, so its type may not hold twice an integer. A
  // sum wraps.
  const ReduceOp op = call.op == ReduceOp::kAverage ? ReduceOp::kSum : call.op;
  const Reduction once(call.input.type, op, /*world_size=*/1);
  std::vector<std::byte> sums(count * 8);
  once.Begin(call.input.data, sums.data(), call.input.count);
  std::vector<std::byte> twice(count * 8);
  once.Accumulate(sums.data(), call.input.data, twice.data(), call.input.count);
  std::vector<std::byte> input(count * 8);
  once.Finish(twice.data(), input.data(), call.input.count);
  return input;
}

bool ReducesInputOfRankZero(const Communicator& real, const Collective& call) {
  return Reduces(call.operation) && real.rank() == 0 && call.input.count > 0;
}

absl::Status TakeRankZeroTwice(Communicator& real, const Collective& call) {
  if (!ReducesInputOfRankZero(real, call)) return real.Run(call);
  return RunWithInput(real, call, Twice(call).data());
}

// Returns the input's bytes, and the offset of its last part.
std::pair<std::vector<std::byte>, int64_t> InputAndLastPart(
    const Communicator& real, const Collective& call) {
  return {{call.input.bytes(), call.input.bytes() + call.input.size_bytes()},
          SizeOf(call.input.type) *
              LastPartOf(call.input.count, real.world_size())};
}

absl::Status TakePartTwice(Communicator& real, const Collective& call) {
  if (!ReducesInputOfRankZero(real, call)) return real.Run(call);
  auto [input, begin] = InputAndLastPart(real, call);
  const std::vector<std::byte> twice = Twice(call);
  std::copy(twice.begin() + begin, twice.begin() + std::ssize(input),
            input.begin() + begin);
  return RunWithInput(real, call, input.data());
}

// The group's memory is zero until its rank writes it.
absl::Status TakePartUnwritten(Communicator& real, const Collective& call) {
  if (!ReducesInputOfRankZero(real, call)) return real.Run(call);
  auto [input, begin] = InputAndLastPart(real, call);
  std::fill(input.begin() + begin, input.end(), std::byte{0});
  return RunWithInput(real, call, input.data());
}

absl::Status KeepOutputOfLastRank(Communicator& real, const Collective& call) {
  if (!GetsOutput(real, call) || real.rank() != real.world_size() - 1) {
    return real.Run(call);
  }
  std::vector<std::byte> scratch(static_cast<size_t>(call.output.size_bytes()) +
                                 1);
  Collective wrong = call;
  wrong.output.data = scratch.data();
  if (call.operation == Operation::kBroadcast) {
    wrong.input.data = scratch.data();
  }
  return real.Run(wrong);
}

absl::Status WriteBesideOutput(Communicator& real, const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(real.Run(call));
  if (GetsOutput(real, call)) {
    call.output.bytes()[call.output.size_bytes()] ^= std::byte{1};
  }
  return absl::OkStatus();
}

absl::Status WriteInput(Communicator& real, const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(real.Run(call));
  if (call.input.count > 0) {
    *static_cast<std::byte*>(const_cast<void*>(call.input.data)) ^=
        std::byte{1};
  }
  return absl::OkStatus();
}

// Runs each all-reduce in a group of the same ranks in reverse order.
RunWrong AddInReverse() {
  return [reversed = std::shared_ptr<Communicator>()](
             Communicator& real, const Collective& call) mutable {
    if (call.operation != Operation::kAllReduce) return real.Run(call);
    if (reversed == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(reversed, real.Split(0, -real.rank()));
    }
    return reversed->Run(call);
  };
}

absl::Status SumForAverage(Communicator& real, const Collective& call) {
  Collective changed = call;
  if (call.op == ReduceOp::kAverage) changed.op = ReduceOp::kSum;
  return real.Run(changed);
}

absl::Status AddBySize(Communicator& real, const Collective& call) {
  Collective changed = call;
  changed.uniform = false;
  return real.Run(changed);
}

// The following functions say whether a mutation must show in a case, in a
// group of three.

bool Always(const CollectiveCase&) { return true; }

// The last rank must get an output: as every rank, or as the root or
// destination.
bool LastRankGetsOutput(const CollectiveCase& call) {
  switch (call.operation) {
    case Operation::kReduce:
    case Operation::kGather:
      return call.root == 2;
    case Operation::kSend:
      return DestinationOf(call, kRanks) == 2;
    default:
      return !HasRoot(call.operation) || call.root != 2;
  }
}

bool IsExtreme(const CollectiveCase& call) {
  return call.op == ReduceOp::kMin || call.op == ReduceOp::kMax;
}

// In place, the root's own input may already be the extreme.
bool ShowsWrongRoot(const CollectiveCase& call) {
  return HasRoot(call.operation) && call.operation != Operation::kSend &&
         !(call.operation == Operation::kReduce && call.in_place &&
           IsExtreme(call));
}

bool ShowsDoubleInput(const CollectiveCase& call) {
  return Reduces(call.operation) && !IsExtreme(call) && call.count > 3;
}

// In a ReduceScatter, the last part of an input is the last rank's whole
// output.
bool ShowsDoublePart(const CollectiveCase& call) {
  return ShowsDoubleInput(call) && call.operation != Operation::kReduceScatter;
}

bool ShowsOtherOrder(const CollectiveCase& call) {
  return call.operation == Operation::kAllReduce && call.count > 3 &&
         (call.type == DataType::kFloat32 || call.type == DataType::kFloat64) &&
         !IsExtreme(call);
}

// Returns the cases in which a mutation must show. Excludes small sets of
// special values, many of which do not change.
std::vector<CollectiveCase> CasesOf(bool (*shows)(const CollectiveCase&)) {
  std::vector<CollectiveCase> cases = CollectiveCases(kRanks);
  std::erase_if(cases, [&](const CollectiveCase& call) {
    return call.operation == Operation::kBarrier || call.count < 3 ||
           call.values == ValueKind::kSpecial || !shows(call);
  });
  return cases;
}

// Returns ", as if ..." at the end of a diagnosis, or all of it if there is no
// cause.
std::string CauseIn(const std::string& diagnosis) {
  const size_t begin = diagnosis.find(", as if ");
  return begin == std::string::npos ? diagnosis : diagnosis.substr(begin);
}

// Combines what the ranks report: the first diagnosis for each cause.
absl::StatusOr<Caught> CombineDiagnoses(
    const std::vector<absl::Status>& ranks) {
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

// Returns the result of the check for each case on each rank: by case, then by
// rank. Errors: those of a case, except kDataLoss.
absl::StatusOr<std::vector<std::vector<absl::Status>>> CheckMutated(
    const CollectiveRanks& ranks, const RunWrong& run,
    std::span<const CollectiveCase> cases) {
  const auto results =
      ranks.run(kRanks, [&](Communicator& real) -> absl::StatusOr<std::string> {
        GroupMutant mutated(real, run);
        LOCKSTEP_ASSIGN_OR_RETURN(
            const CollectiveChecker check,
            MakeCollectiveChecker(mutated, ranks.memory, ranks.order));
        RankBytesWriter diagnoses;  // Empty if the case passes.
        for (const CollectiveCase& call : cases) {
          const absl::Status status =
              check(ranks.aligned ? Aligned(call) : call);
          if (!status.ok() && !absl::IsDataLoss(status)) return status;
          diagnoses(status.message());
        }
        return std::move(diagnoses.bytes);
      });
  std::vector<std::vector<absl::Status>> by_case(cases.size());
  for (const absl::StatusOr<std::string>& result : results) {
    LOCKSTEP_RETURN_IF_ERROR(result.status());
    RankBytesReader reader(*result);
    for (std::vector<absl::Status>& statuses : by_case) {
      std::string diagnosis;
      reader(diagnosis);
      statuses.push_back(diagnosis.empty() ? absl::OkStatus()
                                           : absl::DataLossError(diagnosis));
    }
    if (reader.too_short) return absl::InternalError("a rank's words are cut");
  }
  return by_case;
}

// Checks that some rank names the mutant. With two checks, one rank may fail
// the first check while another reports the words: one rank does not write its
// output, and another writes where it must not.
absl::Status ExpectNamedBySome(const Mutant& mutant,
                               const std::vector<absl::Status>& ranks,
                               const CollectiveCase& call) {
  Mutant words = mutant;
  if (mutant.checks.size() > 1) words.says = "";
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

Mutant PlantedOn(const CollectiveRanks& ranks, Mutant mutant,
                 bool (*shows)(const CollectiveCase&), const RunWrong& run) {
  mutant.plant = [ranks, shows, run]() -> absl::StatusOr<Caught> {
    const std::vector<CollectiveCase> cases = CasesOf(shows);
    if (cases.empty()) return absl::InternalError("it shows in no case");
    LOCKSTEP_ASSIGN_OR_RETURN(const auto by_case,
                              CheckMutated(ranks, run, {cases.data(), 1}));
    return CombineDiagnoses(by_case[0]);
  };
  mutant.plant_everywhere = [ranks, mutant, shows,
                             run]() -> absl::StatusOr<int64_t> {
    const std::vector<CollectiveCase> cases = SliceOf(CasesOf(shows), 8);
    LOCKSTEP_ASSIGN_OR_RETURN(const auto by_case,
                              CheckMutated(ranks, run, cases));
    for (size_t i = 0; i < cases.size(); ++i) {
      LOCKSTEP_RETURN_IF_ERROR(ExpectNamedBySome(mutant, by_case[i], cases[i]));
    }
    return std::ssize(cases);
  };
  return mutant;
}

}  // namespace

std::unique_ptr<Communicator> LoseTail(Communicator& real) {
  return std::make_unique<GroupMutant>(real, KeepLastElement);
}

CollectiveRanks CollectivesOnThreads() {
  return {.run = [](int world_size, const RankFunction& fn) {
    return RunRanksCollect(Backend::kThreads, world_size, fn);
  }};
}

CollectiveCase Aligned(CollectiveCase call) {
  if (Reduces(call.operation)) call.misalignment *= SizeOf(call.type);
  return call;
}

MutantSuite CollectiveMutants(const CollectiveRanks& ranks) {
  const auto Planted = [&ranks](Mutant mutant,
                                bool (*shows)(const CollectiveCase&),
                                const RunWrong& run) {
    return PlantedOn(ranks, std::move(mutant), shows, run);
  };
  std::vector<Mutant> mutants = {
      Planted(
          {"SwappedChunks", "the first and the last element change places",
           "Output", "as if the first and the last element had changed places"},
          Always, SwapEnds),
      Planted(
          {"LostTail", "the last element is not written", "Output",
           "as if the last element had not been written"},
          // In place, the old contents may already be right.
          [](const CollectiveCase& call) { return !call.in_place; },
          KeepLastElement),
      Planted({"WrongRoot", "the rank after the root takes its part",
               "Output, Beside", "were the root"},
              ShowsWrongRoot, TakeNextForRoot),
      Planted({"DoubleCount", "rank 0's input is reduced twice", "Output",
               "as if rank 0's input were taken twice"},
              ShowsDoubleInput, TakeRankZeroTwice),
      Planted({"PieceSummedTwice", "a piece of rank 0's input is reduced twice",
               "Output", "as if the last part of rank 0's input were taken"},
              ShowsDoublePart, TakePartTwice),
      Planted({"StalePiece",
               "a piece of rank 0's input is read before rank 0 writes it",
               "Output",
               "as if the last part of rank 0's input had been read before"},
              ShowsDoubleInput, TakePartUnwritten),
      Planted({"StaleBuffer", "the last rank keeps what it had", "Output",
               "as if nothing had been written"},
              LastRankGetsOutput, KeepOutputOfLastRank),
      Planted({"OneTooMany", "one byte after the output is written", "Beside",
               " beside the "},
              Always, WriteBesideOutput),
      Planted(
          {"WritesInput", "the first byte of the input changes", "Input",
           "the input was written"},
          [](const CollectiveCase& call) {
            return !call.in_place && call.operation != Operation::kBroadcast;
          },
          WriteInput),
      Planted({"OrderOfArrival", "the ranks are added in another order",
               "Output", "as if the ranks were added in the order"},
              ShowsOtherOrder, AddInReverse()),
      Planted(
          {"UnscaledAverage", "an average is the sum", "Output",
           "as if it were the sum, not the average"},
          [](const CollectiveCase& call) {
            return Reduces(call.operation) && call.op == ReduceOp::kAverage;
          },
          SumForAverage)};
  if (ranks.order == AdditionOrder::kBySize) {
    mutants.push_back(Planted(
        {"OrderBySize", "a uniform call adds in the order of its size",
         "Output", "as if it were added in the order of its size"},
        [](const CollectiveCase& call) {
          return call.uniform && ShowsOtherOrder(call);
        },
        AddBySize));
  }
  return MakeSuite("collectives", kCollectiveChecks, std::move(mutants));
}

}  // namespace lockstep::conformance
