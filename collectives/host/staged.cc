#include "collectives/host/staged.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/group_member.h"
#include "collectives/host/shared_region.h"

namespace lockstep {

StagedReduction::StagedReduction(GroupMember& member)
    : member_(member),
      rank_(member.rank()),
      world_size_(member.world_size()),
      all_reduce_all_(world_size_ == 2),
      part_bytes_(PieceBytes(member.region().shape()) / world_size_) {}

bool StagedReduction::Takes(const Collective& call) const {
  return call.operation == Operation::kAllReduce && world_size_ > 1;
}

Segment StagedReduction::PartOf(const Collective& call, int index,
                                int64_t piece) const {
  return PieceOf(SegmentOf(call.input.count, world_size_, index),
                 part_bytes_ / SizeOf(call.input.type), piece);
}

// Returns the distance between the staged parts of a piece. The first part is
// the longest.
int64_t StagedReduction::Stride(const Collective& call, int64_t piece) const {
  const int64_t bytes = PartOf(call, 0, piece).count * SizeOf(call.input.type);
  return RoundUp(bytes, kCacheLineBytes);
}

std::byte* StagedReduction::Staged(const Collective& call, int from, int index,
                                   int64_t piece) const {
  const int64_t slot = (staged_pieces_ + piece) % kStagedPieces;
  return member_.region().pieces(from).data() +
         slot * world_size_ * part_bytes_ + index * Stride(call, piece);
}

// Stages a piece. The two previous pieces are in other memory, so all ranks had
// read the overwritten piece before the last meeting.
void StagedReduction::Stage(const Collective& call, int64_t piece) {
  if (!touched_) {
    UseHugePages(member_.region().all_pieces());
    TouchPages(member_.region().all_pieces());
    touched_ = true;
  }
  for (int i = 0; i < world_size_; ++i) {
    if (i == rank_ && !all_reduce_all_) continue;
    const Segment part = PartOf(call, i, piece);
    const ConstBuffer from = call.input.Part(part.begin, part.count);
    std::memcpy(Staged(call, rank_, i, piece), from.data,
                static_cast<size_t>(from.size_bytes()));
  }
}

void StagedReduction::Reduce(const Collective& call, int64_t piece) {
  const Reduction reduction(call.input.type, call.op, world_size_);
  std::array<const void*, kMaxWorldSize> inputs;
  const auto from = std::span(inputs).first(static_cast<size_t>(world_size_));
  for (int index = 0; index < world_size_; ++index) {
    const Segment part = PartOf(call, index, piece);
    if (!Reduces(index) || part.count == 0) continue;
    for (int i = 0; i < world_size_; ++i) {
      const int peer = call.uniform ? i : (index + i) % world_size_;
      inputs[i] = peer == rank_ ? call.input.Part(part.begin, part.count).data
                                : Staged(call, peer, index, piece);
    }
    void* const outputs[] = {call.output.Part(part.begin, part.count).data,
                             Staged(call, rank_, index, piece)};
    const auto to = std::span(outputs).first(all_reduce_all_ ? 1 : 2);
    if (call.uniform) {
      reduction.FoldTree(from, to, part.count);
    } else {
      reduction.Fold(from, to, part.count);
    }
  }
}

void StagedReduction::CopyOut(const Collective& call, int64_t piece) {
  for (int i = 1; i < world_size_; ++i) {
    const int peer = (rank_ + i) % world_size_;
    if (Reduces(peer)) continue;
    const Segment part = PartOf(call, peer, piece);
    const Buffer to = call.output.Part(part.begin, part.count);
    std::memcpy(to.data, Staged(call, peer, peer, piece),
                static_cast<size_t>(to.size_bytes()));
  }
}

absl::Status StagedReduction::Run(const Collective& call, bool all_staged,
                                  bool staged) {
  if (!staged) Stage(call, 0);
  if (!all_staged) LOCKSTEP_RETURN_IF_ERROR(member_.Complete());
  const int64_t pieces =
      PieceCount(SegmentOf(call.input.count, world_size_, 0).count,
                 part_bytes_ / SizeOf(call.input.type));
  for (int64_t piece = 0; piece < pieces; ++piece) {
    if (piece > 0) CopyOut(call, piece - 1);
    Reduce(call, piece);
    const bool last = piece + 1 == pieces;
    if (!last) Stage(call, piece + 1);
    if (!last || !all_reduce_all_) {
      LOCKSTEP_RETURN_IF_ERROR(member_.Complete());
    }
  }
  CopyOut(call, pieces - 1);
  staged_pieces_ += pieces;
  return absl::OkStatus();
}

}  // namespace lockstep
