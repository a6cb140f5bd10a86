// Reductions in the order of the tree.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/over_transport.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

// One rank's part in a reduction. What travels is accumulators; those of a rank
// that speaks for its group lie in sums_, one for each element of the input.
class Tree {
 public:
  // root: of a reduction to one rank, else 0.
  Tree(Transport& transport, ConstBuffer input, ReduceOp op, int root)
      : transport_(transport),
        reduction_(input.type, op, transport.world_size()),
        input_(input),
        root_(root),
        world_size_(transport.world_size()),
        group_(TreeGroupOf(world_size_, transport.rank())),
        rounds_(TreeRounds(world_size_)),
        accumulator_bytes_(SizeOf(reduction_.accumulator())) {}

  bool Speaks() const { return Speaker(group_) == transport_.rank(); }
  bool IsInPair() const { return IsTreePair(world_size_, group_); }
  int partner() const { return TreePartner(transport_.rank()); }

  // A rank that does not speak: hands its input over.
  absl::Status GiveInput() {
    return SendMessage(
        transport_, partner(), input_.count * accumulator_bytes_,
        [this](int64_t offset, std::span<std::byte> room) {
          const Segment piece = ElementsAt({0, input_.count}, offset, room);
          reduction_.Begin(input_.Part(piece.begin, piece.count).data,
                           room.data(), piece.count);
        });
  }

  // One that does: begins with its own input, and its partner's.
  absl::Status Begin() {
    const Segment all = {0, input_.count};
    sums_ = std::make_unique_for_overwrite<std::byte[]>(
        static_cast<size_t>(all.count * accumulator_bytes_));
    reduction_.Begin(input_.data, sums_.get(), all.count);
    if (!IsInPair()) return absl::OkStatus();
    return ReceiveMessage(
        transport_, partner(), all.count * accumulator_bytes_,
        Merge{*this, all, /*peer_is_earlier=*/partner() < transport_.rank()});
  }

  absl::Status Halve() {
    for (int round = 0; round < rounds_; ++round) {
      const TreeRound r = Round(round);
      const int peer = Speaker(r.peer_group);
      LOCKSTEP_RETURN_IF_ERROR(
          ExchangeMessages(transport_, peer, Sums(r.peers), peer,
                           r.mine.count * accumulator_bytes_,
                           Merge{*this, r.mine, r.peer_is_earlier}));
    }
    return absl::OkStatus();
  }

  absl::Status Double() {
    for (int round = rounds_ - 1; round >= 0; --round) {
      const TreeRound r = Round(round);
      if (r.whole) continue;
      const int peer = Speaker(r.peer_group);
      const std::span<std::byte> missing = Sums(r.peers);
      LOCKSTEP_RETURN_IF_ERROR(ExchangeMessages(
          transport_, peer, Sums(r.mine), peer,
          static_cast<int64_t>(missing.size()), CopyTo(missing.data())));
    }
    return absl::OkStatus();
  }

  // In place of Double: only the root ends with all sums.
  absl::Status GatherAtRoot() {
    const int root_group = TreeGroupOf(world_size_, root_);
    for (int round = rounds_ - 1; round >= 0; --round) {
      const TreeRound r = Round(round);
      const int peer = Speaker(r.peer_group);
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
  // Adds what comes to the sums of a range.
  struct Merge {
    void operator()(int64_t offset, std::span<const std::byte> piece) const {
      const Segment place = tree.ElementsAt(range, offset, piece);
      std::byte* const mine = tree.Sums(place).data();
      const void* const earlier = peer_is_earlier ? piece.data() : mine;
      const void* const later = peer_is_earlier ? mine : piece.data();
      tree.reduction_.Merge(earlier, later, mine, place.count);
    }

    const Tree& tree;
    Segment range;
    bool peer_is_earlier;
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

  // The elements of `range` whose accumulators are this piece of a message.
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
  const int root_;
  const int world_size_;
  const int group_;
  const int rounds_;
  const int64_t accumulator_bytes_;
  std::unique_ptr<std::byte[]> sums_;
};

// Room for every rank's input.
class Inputs {
 public:
  Inputs(const ConstBuffer& input, int world_size)
      : world_size_(world_size),
        bytes_(std::make_unique_for_overwrite<std::byte[]>(
            static_cast<size_t>(input.size_bytes() * world_size))),
        all_(bytes_.get(), input.count * world_size, input.type) {}

  const Buffer& all() const { return all_; }

  void Fold(ReduceOp op, Buffer output) const {
    std::vector<const void*> inputs;
    for (int rank = 0; rank < world_size_; ++rank) {
      inputs.push_back(all_.Part(rank * output.count, output.count).data);
    }
    void* const outputs[] = {output.data};
    Reduction(output.type, op, world_size_)
        .FoldTree(inputs, outputs, output.count);
  }

 private:
  int world_size_;
  std::unique_ptr<std::byte[]> bytes_;
  Buffer all_;
};

}  // namespace

absl::Status TreeAllReduce(Transport& transport, ConstBuffer input,
                           Buffer output, ReduceOp op) {
  const std::span<std::byte> result(output.bytes(),
                                    static_cast<size_t>(output.size_bytes()));
  Tree tree(transport, input, op, /*root=*/0);
  if (!tree.Speaks()) {
    LOCKSTEP_RETURN_IF_ERROR(tree.GiveInput());
    return ReceiveBytes(transport, tree.partner(), result);
  }
  LOCKSTEP_RETURN_IF_ERROR(tree.Begin());
  LOCKSTEP_RETURN_IF_ERROR(tree.Halve());
  LOCKSTEP_RETURN_IF_ERROR(tree.Double());
  tree.Finish(output);
  if (!tree.IsInPair()) return absl::OkStatus();
  return SendBytes(transport, tree.partner(), result);
}

absl::Status TreeReduce(Transport& transport, ConstBuffer input, Buffer output,
                        ReduceOp op, int root) {
  Tree tree(transport, input, op, root);
  if (!tree.Speaks()) return tree.GiveInput();
  LOCKSTEP_RETURN_IF_ERROR(tree.Begin());
  LOCKSTEP_RETURN_IF_ERROR(tree.Halve());
  LOCKSTEP_RETURN_IF_ERROR(tree.GatherAtRoot());
  if (transport.rank() == root) tree.Finish(output);
  return absl::OkStatus();
}

absl::Status GatherAllReduce(Transport& transport, ConstBuffer input,
                             Buffer output, ReduceOp op) {
  const Inputs inputs(input, transport.world_size());
  LOCKSTEP_RETURN_IF_ERROR(RingAllGather(transport, input, inputs.all(), {}));
  inputs.Fold(op, output);
  return absl::OkStatus();
}

absl::Status GatherReduce(Transport& transport, ConstBuffer input,
                          Buffer output, ReduceOp op, int root) {
  if (transport.rank() != root) {
    return PairwiseGather(transport, input, {}, root);
  }
  const Inputs inputs(input, transport.world_size());
  LOCKSTEP_RETURN_IF_ERROR(
      PairwiseGather(transport, input, inputs.all(), root));
  inputs.Fold(op, output);
  return absl::OkStatus();
}

}  // namespace lockstep
