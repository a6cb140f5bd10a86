#include "collectives/algorithms/over_transport.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/algorithms/pairwise.h"
#include "collectives/algorithms/ring.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/transport.h"
#include "collectives/algorithms/tree.h"
#include "collectives/collective.h"
#include "collectives/group_options.h"

namespace lockstep {
namespace {

// A message takes P-1 hops round a ring, and in a tree up to 2 log2(P) + 2, of
// which there are fewer from 4 ranks on where ranges are not halved.
constexpr int kMaxGatherRanks = 3;

// Among the algorithms in tree order.
bool UsesTree(Algorithm algorithm, int world_size) {
  if (algorithm == Algorithm::kRing) return false;
  return algorithm == Algorithm::kTree || world_size > kMaxGatherRanks;
}

absl::Status AllReduce(Transport& transport, const Collective& call,
                       Algorithm algorithm) {
  const bool small = InTreeOrder(call.input.size_bytes());
  if (!small && !call.uniform) {
    return RingAllReduce(transport, call.input, call.output, call.op);
  }
  if (!small || UsesTree(algorithm, transport.world_size())) {
    return TreeAllReduce(transport, call.input, call.output, call.op);
  }
  return GatherAllReduce(transport, call.input, call.output, call.op);
}

absl::Status Reduce(Transport& transport, const Collective& call,
                    Algorithm algorithm) {
  if (!InTreeOrder(call.input.size_bytes())) {
    return RingReduce(transport, call.input, call.output, call.op, call.peer);
  }
  if (UsesTree(algorithm, transport.world_size())) {
    return TreeReduce(transport, call.input, call.output, call.op, call.peer);
  }
  return GatherReduce(transport, call.input, call.output, call.op, call.peer);
}

}  // namespace

absl::Status RunOverTransport(Transport& transport, const Collective& call,
                              Algorithm algorithm) {
  switch (call.operation) {
    case Operation::kAllReduce:
      return AllReduce(transport, call, algorithm);
    case Operation::kReduce:
      return Reduce(transport, call, algorithm);
    case Operation::kReduceScatter:
      return RingReduceScatter(transport, call.input, call.output, call.op);
    case Operation::kAllGather:
      return RingAllGather(transport, call.input, call.output, call.counts);
    case Operation::kBroadcast:
      return RingBroadcast(transport, call.output, call.peer);
    case Operation::kScatter:
      return PairwiseScatter(transport, call.input, call.output, call.peer);
    case Operation::kGather:
      return PairwiseGather(transport, call.input, call.output, call.peer);
    case Operation::kAllToAll:
      return PairwiseAllToAll(transport, call.input, call.output);
    case Operation::kSend:
    case Operation::kReceive:
      return SendOrReceive(transport, call);
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
      break;
  }
  return absl::InternalError(
      absl::StrCat(Name(call.operation), " moves no data"));
}

}  // namespace lockstep
