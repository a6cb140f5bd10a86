// Mutants of how gradients and parameters travel between the ranks.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/decorators.h"
#include "conformance/training_mutants.h"
#include "conformance/training_run.h"

namespace lockstep {
namespace {

using Data = std::span<float>;

// A mutation whose all-reduce of gradients is `sum`; one state of it a rank.
Mutation Summing(std::function<AllReduceMutant::Sum(const RankContext&)> sum) {
  Mutation mutation;
  mutation.communicator = [sum = std::move(sum)](Communicator& inner,
                                                 const RankContext& context) {
    return std::make_unique<AllReduceMutant>(inner, sum(context));
  };
  return mutation;
}

// For mutants that need no state.
Mutation Summing(AllReduceMutant::Sum sum) {
  return Summing([sum = std::move(sum)](const RankContext&) { return sum; });
}

Mutation Broadcasting(BroadcastMutant::Send send) {
  Mutation mutation;
  mutation.communicator = [send = std::move(send)](Communicator& inner,
                                                   const RankContext&) {
    return std::make_unique<BroadcastMutant>(inner, send);
  };
  return mutation;
}

void Scale(Data data, float factor) {
  for (float& v : data) v *= factor;
}

absl::Status DropLastRank(Communicator& group, Data data) {
  if (group.rank() == group.world_size() - 1) Scale(data, 0);
  return group.AllReduce(data);
}

absl::Status CountRankTwice(Communicator& group, Data data) {
  if (group.rank() == 1) Scale(data, 2);
  return group.AllReduce(data);
}

absl::Status CountRankForAnother(Communicator& group, Data data) {
  if (group.rank() == 0) Scale(data, 0);
  if (group.rank() == 1) Scale(data, 2);
  return group.AllReduce(data);
}

// The ring's chunks 0 and 1 of P come home to each other's place.
absl::Status SwapChunks(Communicator& group, Data data) {
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
  const size_t chunk = data.size() / group.world_size();
  std::swap_ranges(data.begin(), data.begin() + chunk, data.begin() + chunk);
  return absl::OkStatus();
}

AllReduceMutant::Sum SkipLastBucket(const RankContext& context) {
  // The last to be sent begins where the parameters do.
  return [first = context.gradients.data()](Communicator& group, Data data) {
    if (data.data() == first) return absl::OkStatus();
    return group.AllReduce(data);
  };
}

// Returns each bucket's sum of the step before.
AllReduceMutant::Sum OneStepStale(const RankContext&) {
  auto sums = std::make_shared<std::map<const float*, std::vector<float>>>();
  return [sums](Communicator& group, Data data) {
    LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
    std::vector<float> sum(data.begin(), data.end());
    std::vector<float>& before = (*sums)[data.data()];
    if (!before.empty()) std::copy(before.begin(), before.end(), data.begin());
    before = std::move(sum);
    return absl::OkStatus();
  };
}

absl::Status KeepOwnOnOneRank(Communicator& group, Data data) {
  std::vector<float> copy(data.begin(), data.end());
  return group.AllReduce(group.rank() == 1 ? Data(copy) : data);
}

absl::Status SumFirstHalf(Communicator& group, Data data) {
  return group.AllReduce(data.first(data.size() / 2));
}

absl::Status SumAllButLast(Communicator& group, Data data) {
  return group.AllReduce(data.first(data.size() - 1));
}

absl::Status SumToNan(Communicator& group, Data data) {
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
  data[data.size() / 2] = std::nanf("");
  return absl::OkStatus();
}

absl::Status AverageAgain(Communicator& group, Data data) {
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
  Scale(data, 1.0f / static_cast<float>(group.world_size()));
  return absl::OkStatus();
}

// To the nearest of the 8 significant bits of bfloat16, on the wire.
absl::Status SumInBFloat16(Communicator& group, Data data) {
  for (float& v : data) {
    const uint32_t bits = std::bit_cast<uint32_t>(v);
    v = std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) &
                             0xffff0000u);
  }
  return group.AllReduce(data);
}

// Every rank adds the ranks' contributions starting with its own.
absl::Status SumFromOwnRank(Communicator& group, Data data) {
  std::vector<float> all(data.size() * group.world_size());
  LOCKSTEP_RETURN_IF_ERROR(
      group.AllGather(std::span<const float>(data), std::span<float>(all)));
  for (int i = 1; i < group.world_size(); ++i) {
    const size_t rank = (group.rank() + i) % group.world_size();
    for (size_t k = 0; k < data.size(); ++k) {
      data[k] += all[rank * data.size() + k];
    }
  }
  return absl::OkStatus();
}

absl::Status NoBroadcast(Communicator&, Buffer, int) {
  return absl::OkStatus();
}

absl::Status BroadcastFromLastRank(Communicator& group, Buffer data, int) {
  return group.Broadcast(data, group.world_size() - 1);
}

}  // namespace

std::vector<TrainingMutant> CommunicatorMutants() {
  return {
      {{"RankDropped",
        "the last rank's gradient is not in the sum",
        {"Gradients"},
        "rank 2's part is left out"},
       Summing(DropLastRank)},
      {{"RankCountedTwice",
        "rank 1's gradient is in the sum twice",
        {"Gradients"},
        "; rank 1's part counts 2 times"},
       Summing(CountRankTwice)},
      {{"RankCountedForAnother",
        "rank 1's gradient is in the sum in place of rank 0's too",
        {"Gradients"},
        "rank 0's part is left out, rank 1's part counts 2 times"},
       Summing(CountRankForAnother)},
      {{"ChunksSwapped",
        "two chunks of the ring change places on every rank",
        {"Gradients"},
        "it has there the values of W"},
       Summing(SwapChunks)},
      {{"LastBucketNotReduced",
        "the last bucket stays as each rank computed it",
        {"RanksAgree", "Gradients"},
        "each has there the gradient of its own samples: not reduced?"},
       Summing(SkipLastBucket)},
      {{"OneStepStale",
        "each step applies the gradient of the step before",
        {"Gradients"},
        "the step before: stale"},
       Summing(OneStepStale)},
      {{"NotWrittenBack",
        "rank 1 keeps its own gradient",
        {"RanksAgree", "Gradients"},
        "rank 1 has there the gradient of its own samples"},
       Summing(KeepOwnOnOneRank)},
      {{"HalfReduced",
        "the second half of each bucket is not summed",
        {"RanksAgree", "Gradients"},
        "each has there the gradient of its own samples: not reduced?"},
       Summing(SumFirstHalf)},
      {{"LastElementNotReduced",
        "the last element of each bucket is not summed",
        {"RanksAgree", "Gradients"},
        "each has there the gradient of its own samples: not reduced?"},
       Summing(SumAllButLast)},
      {{"NotANumber",
        "one element of each bucket becomes NaN",
        {"Updates", "Gradients"},
        "its gradient is NaN, one of"},
       Summing(SumToNan)},
      {{"AveragedTwice",
        "the mean is divided by the world size again",
        {"Gradients"},
        "averaged twice"},
       Summing(AverageAgain)},
      {{"SummedInBFloat16",
        "gradients are rounded to bfloat16 to travel",
        {"Gradients"},
        "as near as bfloat16 rounds"},
       Summing(SumInBFloat16)},
      {{"SummedFromOwnRank",
        "each rank adds the gradients in its own order",
        {"RanksAgree"},
        "added in different orders?"},
       Summing(SumFromOwnRank)},
      {{"NotBroadcast",
        "every rank starts with parameters of its own",
        {"SameStart", "RanksAgree", "Gradients"},
        "parameters not broadcast from rank 0?"},
       Broadcasting(NoBroadcast)},
      {{"WrongRoot",
        "the parameters are broadcast from the last rank",
        {"SameStart"},
        "and all ranks start alike: broadcast from another rank?"},
       Broadcasting(BroadcastFromLastRank)},
  };
}

}  // namespace lockstep
