// Makes the suite's calls on one rank and checks their results.
#include "conformance/collectives/collective_checker.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_causes.h"
#include "conformance/mutant.h"
#include "conformance/report/claim_recorder.h"

namespace lockstep::conformance {
namespace {

// The bytes on either side of a buffer that are watched.
constexpr int64_t kGuardBytes = 256;
// The size per rank of the largest input or output of a case.
constexpr int64_t kRankBytes = 18 << 10;

int64_t AreaBytes(int world_size) {
  return 2 * kGuardBytes + world_size * kRankBytes;
}

// Returns the contents of memory before a call, which no case leaves there.
Bytes StaleMemory(int64_t size) {
  Bytes stale(static_cast<size_t>(size));
  for (size_t i = 0; i < stale.size(); ++i) {
    stale[i] = static_cast<std::byte>(i * 29 + 173);
  }
  return stale;
}

// Returns the first byte of the area that is not stale, outside [begin, end).
std::optional<int64_t> FirstWritten(std::span<const std::byte> area,
                                    const Bytes& stale, int64_t begin,
                                    int64_t end) {
  const auto size = static_cast<int64_t>(area.size());
  for (const auto& [from, to] :
       {std::pair(int64_t{0}, begin), std::pair(end, size)}) {
    if (std::memcmp(area.data() + from, stale.data() + from,
                    static_cast<size_t>(to - from)) == 0) {
      continue;
    }
    return std::mismatch(area.begin() + from, area.begin() + to,
                         stale.begin() + from)
               .first -
           area.begin();
  }
  return std::nullopt;
}

int64_t Sum(const std::vector<int64_t>& counts, size_t size) {
  return std::accumulate(counts.begin(), counts.begin() + size, int64_t{0});
}

// Returns the number of elements of a rank's output, if the rank gets one.
int64_t OutputCount(const CollectiveCase& call, int world_size) {
  switch (call.operation) {
    case Operation::kAllGather:
    case Operation::kGather:
      return Sum(CountsOf(call, world_size), static_cast<size_t>(world_size));
    case Operation::kAllToAll:
      return call.count * world_size;
    default:
      return call.count;
  }
}

// Whether an in-place output is a part of the input, or an in-place input a
// part of the output.
bool OutputIsPart(Operation operation) {
  return operation == Operation::kReduceScatter ||
         operation == Operation::kScatter;
}
bool InputIsPart(Operation operation) {
  return operation == Operation::kAllGather || operation == Operation::kGather;
}

int64_t CasesOf(DataType type,
                std::span<const absl::StatusOr<std::string>> asked) {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const auto& types : asked) {
    if (!types.ok()) return 0;
    fewest = std::min<int64_t>(fewest, std::count(types->begin(), types->end(),
                                                  static_cast<char>(type)));
  }
  return asked.empty() ? 0 : fewest;
}

// One case as a rank sees it.
struct OwnCase {
  const CollectiveCase& call;
  Bytes input_values;
  std::optional<Bytes> output_values;  // The expected output.
  std::byte* input;
  std::byte* output;
  bool apart;  // Input and output do not overlap.
  // The contents of the output's memory before the call, if the rank gets one.
  Bytes before;
  // The watched parts of the areas for inputs and outputs.
  std::span<std::byte> inputs;
  std::span<std::byte> outputs;
};

class Checker {
 public:
  Checker(Communicator& communicator, AdditionOrder order)
      : communicator_(communicator), order_(order) {}

  absl::Status Allocate(Memory memory) {
    const int64_t size = AreaBytes(communicator_.world_size());
    std::span<std::byte> all;
    if (memory == Memory::kGroup) {
      LOCKSTEP_ASSIGN_OR_RETURN(group_memory_,
                                communicator_.Allocate(2 * size));
      all = group_memory_.bytes();
    } else {
      ordinary_memory_ =
          std::make_unique<std::byte[]>(static_cast<size_t>(2 * size));
      all = {ordinary_memory_.get(), static_cast<size_t>(2 * size)};
    }
    stale_ = StaleMemory(size);
    inputs_ = all.first(static_cast<size_t>(size));
    outputs_ = all.last(static_cast<size_t>(size));
    return absl::OkStatus();
  }

  absl::Status Check(const CollectiveCase& call) {
    OwnCase own = OwnCaseOf(call);
    std::copy_n(stale_.begin(), own.inputs.size(), own.inputs.begin());
    std::copy_n(stale_.begin(), own.outputs.size(), own.outputs.begin());
    std::copy(own.input_values.begin(), own.input_values.end(), own.input);
    if (call.operation == Operation::kBroadcast) {
      // Every rank has its own values, which the root's must replace.
      std::copy(own.input_values.begin(), own.input_values.end(), own.output);
    }
    if (own.output_values.has_value()) {
      own.before.assign(own.output, own.output + own.output_values->size());
    }
    LOCKSTEP_RETURN_IF_ERROR(Make(own));
    LOCKSTEP_RETURN_IF_ERROR(CheckOutput(own));
    return CheckBeside(own);
  }

 private:
  // Returns the error of a check. Every rejection is made here.
  absl::Status Wrong(NameIn<kCollectiveChecks> check,
                     const CollectiveCase& call,
                     const std::string& what) const {
    return absl::DataLossError(absl::StrCat(check.name(), ": ", ToString(call),
                                            ", rank ", communicator_.rank(),
                                            ": ", what));
  }

  OwnCase OwnCaseOf(const CollectiveCase& call) const {
    const int rank = communicator_.rank();
    const int world_size = communicator_.world_size();
    const int64_t offset = kGuardBytes + call.misalignment;
    const int64_t element = SizeOf(call.type);
    OwnCase own = {
        call,
        InputOf(call, world_size, rank),
        OutputOf(call, order_, world_size, rank),
        inputs_.data() + offset,
        outputs_.data() + offset,
        // Only the root has an input and an output that can overlap.
        !call.in_place || (HasRoot(call.operation) && rank != call.root),
        {},
        {},
        {}};
    const size_t largest =
        std::max(own.input_values.size(),
                 static_cast<size_t>(OutputCount(call, world_size) * element));
    own.inputs =
        inputs_.first(largest + static_cast<size_t>(offset + kGuardBytes));
    own.outputs = outputs_.first(own.inputs.size());
    if (own.apart) return own;
    if (OutputIsPart(call.operation)) {
      own.output = own.input + rank * call.count * element;
    } else if (InputIsPart(call.operation)) {
      own.input = own.output + element * Sum(CountsOf(call, world_size),
                                             static_cast<size_t>(rank));
    } else {
      own.input = own.output;
    }
    return own;
  }

  absl::Status Make(const OwnCase& own) {
    const CollectiveCase& call = own.call;
    const int rank = communicator_.rank();
    const int world_size = communicator_.world_size();
    const ConstBuffer input(
        own.input,
        static_cast<int64_t>(own.input_values.size()) / SizeOf(call.type),
        call.type);
    const Buffer output(own.output, OutputCount(call, world_size), call.type);
    switch (call.operation) {
      case Operation::kAllReduce:
        if (call.uniform) {
          return communicator_.Run(
              Collective::UniformAllReduce(output, call.op));
        }
        return communicator_.AllReduce(input, output, call.op);
      case Operation::kReduce:
        return communicator_.Reduce(input, output, call.op, call.root);
      case Operation::kReduceScatter:
        return communicator_.ReduceScatter(input, output, call.op);
      case Operation::kAllGather:
        return call.unequal ? communicator_.AllGather(
                                  input, output, CountsOf(call, world_size))
                            : communicator_.AllGather(input, output);
      case Operation::kBroadcast:
        return communicator_.Broadcast(output, call.root);
      case Operation::kScatter:
        return communicator_.Scatter(input, output, call.root);
      case Operation::kGather:
        return communicator_.Gather(input, output, call.root);
      case Operation::kAllToAll:
        return communicator_.AllToAll(input, output);
      case Operation::kSend: {
        const int to = DestinationOf(call, world_size);
        if (rank == call.root) return communicator_.Send(input, to);
        return rank == to ? communicator_.Receive(output, call.root)
                          : absl::OkStatus();
      }
      case Operation::kBarrier:
        return communicator_.Barrier();
      case Operation::kReceive:
      case Operation::kAllocate:
      case Operation::kSplit:
      case Operation::kReplay:
        break;
    }
    return absl::InvalidArgumentError("no case of the suite");
  }

  absl::Status CheckOutput(const OwnCase& own) const {
    if (!own.output_values.has_value()) return absl::OkStatus();
    const std::optional<std::string> difference =
        Difference(own.call, own.output, *own.output_values);
    if (!difference.has_value()) return absl::OkStatus();
    return Wrong("Output", own.call,
                 *difference + CauseOfOutput({own.call, order_,
                                              communicator_.world_size(),
                                              communicator_.rank(), own.output,
                                              *own.output_values, own.before}));
  }

  // Checks that the call wrote only where it may: to the output, and to an
  // input that contains the output.
  absl::Status CheckBeside(const OwnCase& own) const {
    const int64_t output_size =
        own.output_values.has_value()
            ? static_cast<int64_t>(own.output_values->size())
            : 0;
    const int64_t input_size = static_cast<int64_t>(own.input_values.size());
    if (own.apart && !std::equal(own.input_values.begin(),
                                 own.input_values.end(), own.input)) {
      return Wrong("Input", own.call, "the input was written");
    }
    const bool of_inputs = OutputIsPart(own.call.operation);
    const auto near = [&](std::span<const std::byte> area, const std::byte* at,
                          int64_t size, bool may_be_there) {
      const int64_t begin = at - area.data();
      std::optional<int64_t> written =
          may_be_there ? FirstWritten(area, stale_, begin, begin + size)
                       : FirstWritten(area, stale_, 0, 0);
      if (written.has_value()) *written -= begin;
      return written;
    };
    if (const auto byte =
            near(own.inputs, own.input, input_size, own.apart || of_inputs)) {
      return Wrong(
          "Beside", own.call,
          absl::StrCat("byte ", *byte, " beside the input was written"));
    }
    if (const auto byte = near(own.outputs, own.output, output_size,
                               own.apart || !of_inputs)) {
      return Wrong(
          "Beside", own.call,
          absl::StrCat("byte ", *byte, " beside the output was written",
                       own.output_values.has_value()
                           ? ""
                           : CauseOfStrayOutput(
                                 own.call, order_, communicator_.world_size(),
                                 communicator_.rank(), own.output)));
    }
    return absl::OkStatus();
  }

  Communicator& communicator_;
  const AdditionOrder order_;
  GroupBuffer group_memory_;
  std::unique_ptr<std::byte[]> ordinary_memory_;
  Bytes stale_;  // The contents of inputs_ and outputs_ before a call.
  std::span<std::byte> inputs_;
  std::span<std::byte> outputs_;
};

}  // namespace

absl::StatusOr<CollectiveChecker> MakeCollectiveChecker(
    Communicator& communicator, Memory memory, AdditionOrder order) {
  const auto checker = std::make_shared<Checker>(communicator, order);
  LOCKSTEP_RETURN_IF_ERROR(checker->Allocate(memory));
  return [checker](const CollectiveCase& call) { return checker->Check(call); };
}

absl::StatusOr<std::string> CheckCollectives(Communicator& communicator,
                                             Memory memory, uint64_t salt) {
  LOCKSTEP_ASSIGN_OR_RETURN(const CollectiveChecker check,
                            MakeCollectiveChecker(communicator, memory));
  return CheckCollectives(check,
                          SomeCollectiveCases(communicator.world_size(), salt));
}

absl::StatusOr<std::string> CheckCollectives(
    const CollectiveChecker& check, std::span<const CollectiveCase> cases) {
  std::string asked;
  for (const CollectiveCase& call : cases) {
    LOCKSTEP_RETURN_IF_ERROR(check(call));
    asked.push_back(static_cast<char>(call.type));
  }
  return asked;
}

CollectiveClaims::CollectiveClaims(const std::string& backend, int world_size) {
  for (const DataType type : kAllDataTypes) {
    recorders_[type] = std::make_unique<ClaimRecorder>(
        ClaimCellId{"collectives", backend, world_size, Name(type)});
  }
}

void CollectiveClaims::Add(std::span<const absl::StatusOr<std::string>> asked) {
  for (const auto& [type, recorder] : recorders_) {
    const int64_t cases = CasesOf(type, asked);
    if (cases > 0) recorder->AddExact(cases);
  }
}

}  // namespace lockstep::conformance
