#include "collectives/algorithms/over_transport.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/algorithms/ring.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {
namespace {

std::span<const std::byte> BytesOf(const ConstBuffer& buffer) {
  return {buffer.bytes(), static_cast<size_t>(buffer.size_bytes())};
}
std::span<std::byte> BytesOf(const Buffer& buffer) {
  return {buffer.bytes(), static_cast<size_t>(buffer.size_bytes())};
}

// Moves a piece of the message to or from `peer`, if it can at once. Returns
// whether it did.
using TryPiece =
    absl::FunctionRef<absl::StatusOr<bool>(int peer, Segment bytes)>;

// Moves a message of `size` bytes to or from every other rank, on the root.
// Interleaves the pieces of all ranks.
absl::Status ServeAll(const Transport& transport, int64_t size,
                      TryPiece try_piece,
                      absl::FunctionRef<absl::Status(int peer)> wait) {
  const int64_t piece = transport.max_piece_bytes();
  const int64_t pieces = PieceCount(size, piece);
  std::vector<int64_t> moved(transport.world_size());
  moved[transport.rank()] = pieces;
  while (true) {
    bool progress = false;
    // The most advanced of the ranks that are not done.
    int foremost = Transport::kNoRank;
    for (int peer = 0; peer < transport.world_size(); ++peer) {
      if (moved[peer] == pieces) continue;
      LOCKSTEP_ASSIGN_OR_RETURN(
          const bool done,
          try_piece(peer, PieceOf({0, size}, piece, moved[peer])));
      if (done) {
        ++moved[peer];
        progress = true;
      }
      if (moved[peer] < pieces &&
          (foremost == Transport::kNoRank || moved[peer] > moved[foremost])) {
        foremost = peer;
      }
    }
    if (foremost == Transport::kNoRank) return absl::OkStatus();
    if (!progress) LOCKSTEP_RETURN_IF_ERROR(wait(foremost));
  }
}

static_assert(std::is_trivially_copyable_v<Call>);

absl::Status AgreeWithPeer(Transport& transport, const Collective& collective) {
  const int rank = transport.rank();
  const int peer = collective.peer;
  const Call call = CallOf(collective, transport.world_size());
  Call other;
  const std::span<std::byte> received =
      std::as_writable_bytes(std::span(&other, 1));
  LOCKSTEP_RETURN_IF_ERROR(ExchangeMessages(
      transport, peer, std::as_bytes(std::span(&call, 1)), peer,
      static_cast<int64_t>(received.size()), CopyTo(received.data())));
  Call wanted = call;
  wanted.operation = call.operation == Operation::kSend ? Operation::kReceive
                                                        : Operation::kSend;
  wanted.peer = rank;
  if (Agree(other, wanted)) return absl::OkStatus();
  // Both ranks report the same text: the lower rank comes first.
  return rank < peer ? CallsDiffer("ranks disagree", rank, call, peer, other)
                     : CallsDiffer("ranks disagree", peer, other, rank, call);
}

// Gathers straight from one rank to another. The root serves any rank that is
// ready. If none is ready, the root waits for the most advanced rank, not for a
// late one.
absl::Status PairwiseGather(Transport& transport, const Collective& call) {
  const ConstBuffer& input = call.input;
  const Buffer& output = call.output;
  const int root = call.peer;
  if (transport.rank() != root) {
    return SendBytes(transport, root, BytesOf(input));
  }
  CopyElements(input, output.Part(root * input.count, input.count));
  return ServeAll(
      transport, input.size_bytes(),
      [&](int peer, Segment bytes) -> absl::StatusOr<bool> {
        if (!transport.Received(peer).has_value()) return false;
        const Buffer place = output.Part(peer * input.count, input.count);
        LOCKSTEP_RETURN_IF_ERROR(
            ReceivePiece(transport, peer, bytes, CopyTo(place.bytes())));
        return true;
      },
      [&](int peer) { return transport.Wait(Transport::kNoRank, peer); });
}

absl::Status PairwiseScatter(Transport& transport, const Collective& call) {
  const ConstBuffer& input = call.input;
  const Buffer& output = call.output;
  const int root = call.peer;
  if (transport.rank() != root) {
    return ReceiveBytes(transport, root, BytesOf(output));
  }
  CopyElements(input.Part(root * output.count, output.count), output);
  return ServeAll(
      transport, output.size_bytes(),
      [&](int peer, Segment bytes) -> absl::StatusOr<bool> {
        if (!transport.PieceBuffer(peer).has_value()) return false;
        const ConstBuffer part = input.Part(peer * output.count, output.count);
        LOCKSTEP_RETURN_IF_ERROR(
            SendPiece(transport, peer, bytes, CopyFrom(part.bytes())));
        return true;
      },
      [&](int peer) { return transport.Wait(peer, Transport::kNoRank); });
}

// Runs P-1 steps: in step s each rank sends to rank + s and receives from rank
// - s.
absl::Status PairwiseAllToAll(Transport& transport, ConstBuffer input,
                              Buffer output) {
  const int rank = transport.rank();
  const int world_size = transport.world_size();
  const int64_t part = input.count / world_size;
  CopyElements(input.Part(rank * part, part), output.Part(rank * part, part));
  for (int step = 1; step < world_size; ++step) {
    const int to = RankModulo(rank + step, world_size);
    const int from = RankModulo(rank - step, world_size);
    const Buffer place = output.Part(from * part, part);
    LOCKSTEP_RETURN_IF_ERROR(
        ExchangeMessages(transport, to, BytesOf(input.Part(to * part, part)),
                         from, place.size_bytes(), CopyTo(place.bytes())));
  }
  return absl::OkStatus();
}

absl::Status SendOrReceive(Transport& transport, const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(AgreeWithPeer(transport, call));
  if (call.operation == Operation::kSend) {
    return SendBytes(transport, call.peer, BytesOf(call.input));
  }
  return ReceiveBytes(transport, call.peer, BytesOf(call.output));
}

// One rank's part in a reduction by recursive halving and doubling. Messages
// carry accumulators. A rank that speaks for its group keeps its accumulators
// in sums_, one for each element of the input.
class Tree {
 public:
  Tree(Transport& transport, const Collective& call)
      : transport_(transport),
        reduction_(call.input.type, call.op, transport.world_size()),
        input_(call.input),
        root_(call.peer),
        world_size_(transport.world_size()),
        group_(TreeGroupOf(world_size_, transport.rank())),
        rounds_(TreeRounds(world_size_)),
        accumulator_bytes_(SizeOf(reduction_.accumulator())) {}

  bool IsSpeaker() const { return Speaker(group_) == transport_.rank(); }
  bool IsInPair() const { return IsTreePair(world_size_, group_); }
  int partner() const { return TreePartner(transport_.rank()); }

  // Sends the input to the partner, on a rank that does not speak for its
  // group.
  absl::Status SendInput() {
    return SendMessage(
        transport_, partner(), input_.count * accumulator_bytes_,
        [this](int64_t offset, std::span<std::byte> room) {
          const Segment piece = ElementsAt({0, input_.count}, offset, room);
          reduction_.Begin(input_.Part(piece.begin, piece.count).data,
                           room.data(), piece.count);
        });
  }

  // Starts the sums with its own input and its partner's, on a rank that
  // speaks.
  absl::Status Begin() {
    const Segment all = {0, input_.count};
    sums_ = std::make_unique_for_overwrite<std::byte[]>(
        static_cast<size_t>(all.count * accumulator_bytes_));
    reduction_.Begin(input_.data, sums_.get(), all.count);
    if (!IsInPair()) return absl::OkStatus();
    return ReceiveMessage(
        transport_, partner(), all.count * accumulator_bytes_,
        Merge{*this, all, /*other_is_earlier=*/partner() < transport_.rank()});
  }

  absl::Status Halve() {
    for (int round = 0; round < rounds_; ++round) {
      const TreeRound r = Round(round);
      const int peer = Speaker(r.other_group);
      LOCKSTEP_RETURN_IF_ERROR(
          ExchangeMessages(transport_, peer, Sums(r.peers), peer,
                           r.mine.count * accumulator_bytes_,
                           Merge{*this, r.mine, r.other_is_earlier}));
    }
    return absl::OkStatus();
  }

  absl::Status Double() {
    for (int round = rounds_ - 1; round >= 0; --round) {
      const TreeRound r = Round(round);
      if (r.whole) continue;
      const int peer = Speaker(r.other_group);
      const std::span<std::byte> missing = Sums(r.peers);
      LOCKSTEP_RETURN_IF_ERROR(ExchangeMessages(
          transport_, peer, Sums(r.mine), peer,
          static_cast<int64_t>(missing.size()), CopyTo(missing.data())));
    }
    return absl::OkStatus();
  }

  // Sends all sums to the root. Replaces Double in a Reduce, which has one
  // output.
  absl::Status GatherAtRoot() {
    const int root_group = TreeGroupOf(world_size_, root_);
    for (int round = rounds_ - 1; round >= 0; --round) {
      const TreeRound r = Round(round);
      const int peer = Speaker(r.other_group);
      const bool receives = IsOnRootSide(group_, root_group, round);
      if (!r.whole) {
        LOCKSTEP_RETURN_IF_ERROR(
            receives ? ReceiveBytes(transport_, peer, Sums(r.peers))
                     : SendBytes(transport_, peer, Sums(r.mine)));
      }
      if (!receives) break;
    }
    return absl::OkStatus();
  }

  void Finish(Buffer output) const {
    reduction_.Finish(sums_.get(), output.data, output.count);
  }

 private:
  // Adds each received piece to the sums of a range.
  struct Merge {
    void operator()(int64_t offset, std::span<const std::byte> piece) const {
      const Segment place = tree.ElementsAt(range, offset, piece);
      std::byte* const mine = tree.Sums(place).data();
      const void* const earlier = other_is_earlier ? piece.data() : mine;
      const void* const later = other_is_earlier ? mine : piece.data();
      tree.reduction_.Merge(earlier, later, mine, place.count);
    }

    const Tree& tree;
    Segment range;
    bool other_is_earlier;
  };

  int Speaker(int group) const {
    return TreeSpeaker(world_size_, group, root_);
  }

  TreeRound Round(int round) const {
    const int64_t whole_elements = kTreeWholeBytes / accumulator_bytes_;
    return TreeRoundOf(group_, round,
                       TreeRangeOf(group_, round, input_.count, whole_elements),
                       whole_elements);
  }

  // Returns the elements of `range` whose accumulators are in this piece of a
  // message.
  Segment ElementsAt(Segment range, int64_t offset,
                     std::span<const std::byte> piece) const {
    return {range.begin + offset / accumulator_bytes_,
            static_cast<int64_t>(piece.size()) / accumulator_bytes_};
  }

  std::span<std::byte> Sums(Segment range) const {
    return {sums_.get() + range.begin * accumulator_bytes_,
            static_cast<size_t>(range.count * accumulator_bytes_)};
  }

  Transport& transport_;
  const Reduction reduction_;
  const ConstBuffer input_;
  const int root_;  // 0 for an operation without a root.
  const int world_size_;
  const int group_;
  const int rounds_;
  const int64_t accumulator_bytes_;
  std::unique_ptr<std::byte[]> sums_;
};

// Runs AllReduce and Reduce by recursive halving and doubling, in tree order,
// with few messages. A rank sends and receives at most 2 log2(P) + 2 of them,
// each at most as large as the data. Allocates one accumulator per element.
absl::Status TreeReduce(Transport& transport, const Collective& call) {
  const bool to_all = call.operation == Operation::kAllReduce;
  // In a Reduce no result returns to a partner.
  const std::span<std::byte> result =
      to_all ? BytesOf(call.output) : std::span<std::byte>();
  Tree tree(transport, call);
  if (!tree.IsSpeaker()) {
    LOCKSTEP_RETURN_IF_ERROR(tree.SendInput());
    return ReceiveBytes(transport, tree.partner(), result);
  }
  LOCKSTEP_RETURN_IF_ERROR(tree.Begin());
  LOCKSTEP_RETURN_IF_ERROR(tree.Halve());
  LOCKSTEP_RETURN_IF_ERROR(to_all ? tree.Double() : tree.GatherAtRoot());
  if (to_all || transport.rank() == call.peer) tree.Finish(call.output);
  if (!tree.IsInPair()) return absl::OkStatus();
  return SendBytes(transport, tree.partner(), result);
}

// Reduces little data on few ranks, in tree order. Whole inputs travel, round
// the ring or straight to the root, and each rank that needs the result folds
// them. Cost: P-1 messages of the size of the input each way, and memory for P
// inputs on every rank, or on the root.
absl::Status GatherReduce(Transport& transport, const Collective& call) {
  const bool to_all = call.operation == Operation::kAllReduce;
  const ConstBuffer& input = call.input;
  if (!to_all && transport.rank() != call.peer) {
    return PairwiseGather(transport, Collective::Gather(input, {}, call.peer));
  }
  const int world_size = transport.world_size();
  const auto room = std::make_unique_for_overwrite<std::byte[]>(
      static_cast<size_t>(input.size_bytes() * world_size));
  const Buffer all(room.get(), input.count * world_size, input.type);
  LOCKSTEP_RETURN_IF_ERROR(
      to_all ? RingAllGather(transport, Collective::AllGather(input, all))
             : PairwiseGather(transport,
                              Collective::Gather(input, all, call.peer)));
  std::vector<const void*> inputs;
  for (int rank = 0; rank < world_size; ++rank) {
    inputs.push_back(all.Part(rank * input.count, input.count).data);
  }
  void* const outputs[] = {call.output.data};
  Reduction(input.type, call.op, world_size)
      .FoldTree(inputs, outputs, input.count);
  return absl::OkStatus();
}

// The most ranks for which kAuto uses GatherReduce. A ring sends P-1 messages,
// a tree up to 2 log2(P) + 2. If ranges are not halved, the tree sends fewer
// from 4 ranks on.
constexpr int kMaxGatherRanks = 3;

// Returns whether a reduction in tree order runs as TreeReduce, not
// GatherReduce.
bool UsesTree(Algorithm algorithm, int world_size) {
  if (algorithm == Algorithm::kRing) return false;
  return algorithm == Algorithm::kTree || world_size > kMaxGatherRanks;
}

absl::Status Reduce(Transport& transport, const Collective& call,
                    Algorithm algorithm) {
  const bool small = InTreeOrder(call.input.size_bytes());
  if (!small && !call.uniform) return RingReduce(transport, call);
  if (!small || UsesTree(algorithm, transport.world_size())) {
    return TreeReduce(transport, call);
  }
  return GatherReduce(transport, call);
}

}  // namespace

absl::Status RunOverTransport(Transport& transport, const Collective& call,
                              Algorithm algorithm) {
  if (Reduces(call.operation) && transport.world_size() == 1) {
    CopyElements(call.input, call.output);
    return absl::OkStatus();
  }
  switch (call.operation) {
    case Operation::kAllReduce:
    case Operation::kReduce:
      return Reduce(transport, call, algorithm);
    case Operation::kReduceScatter:
      return RingReduce(transport, call);
    case Operation::kAllGather:
      return RingAllGather(transport, call);
    case Operation::kBroadcast:
      return RingBroadcast(transport, call);
    case Operation::kScatter:
      return PairwiseScatter(transport, call);
    case Operation::kGather:
      return PairwiseGather(transport, call);
    case Operation::kAllToAll:
      return PairwiseAllToAll(transport, call.input, call.output);
    case Operation::kSend:
    case Operation::kReceive:
      return SendOrReceive(transport, call);
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
    case Operation::kReplay:
      break;
  }
  return absl::InternalError(
      absl::StrCat(Name(call.operation), " moves no data"));
}

}  // namespace lockstep
