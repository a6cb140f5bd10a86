// All-reduces of ordinary memory, which other processes cannot reach.
#ifndef LOCKSTEP_COLLECTIVES_HOST_STAGED_H_
#define LOCKSTEP_COLLECTIVES_HOST_STAGED_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "collectives/host/group_member.h"

namespace lockstep {

// The direct algorithm through memory of the region, one piece of the message
// after the other. Two ranks stage all of their data of a piece, and each
// reduces the whole piece. More ranks stage the parts that others reduce. Each
// then reduces its own part, stages the result, and copies the others' parts.
//
// A meeting separates the steps of a piece. Ranks take a step of one piece
// together with the next step of an earlier piece. The cost is one meeting for
// each piece, and one more. The order of additions is that of schedule.h, as in
// RunDirect.
//
// Borrows the member. Not thread safe.
class StagedReduction {
 public:
  explicit StagedReduction(GroupMember& member);

  // Returns whether this algorithm supports a call: an AllReduce of two ranks
  // or more.
  bool Takes(const Collective& call) const;

  // Stages the first piece before the member enters a call that may run this
  // way. This saves a meeting, on a rank whose buffers the others cannot reach.
  // Not allowed once the group has failed, because others may still read.
  void StageFirst(const Collective& call) { Stage(call, 0); }

  // Runs the call that the member has entered. all_staged: every rank has
  // called StageFirst; staged: this rank has. Cost for n bytes: each rank
  // writes n bytes to the region and reads n from it. With more than two ranks
  // it writes and reads 2 (P-1)/P n.
  absl::Status Run(const Collective& call, bool all_staged, bool staged);

 private:
  // Returns the part of segment `index` of the message that is in the piece.
  Segment PartOf(const Collective& call, int index, int64_t piece) const;
  int64_t Stride(const Collective& call, int64_t piece) const;
  // Returns the staged data of `from` for that part of the piece.
  std::byte* Staged(const Collective& call, int from, int index,
                    int64_t piece) const;
  // Returns whether this rank reduces that segment.
  bool Reduces(int index) const { return all_reduce_all_ || index == rank_; }

  void Stage(const Collective& call, int64_t piece);
  void Reduce(const Collective& call, int64_t piece);
  void CopyOut(const Collective& call, int64_t piece);

  GroupMember& member_;
  const int rank_;
  const int world_size_;
  const bool all_reduce_all_;
  const int64_t part_bytes_;  // Bytes of a segment in one piece.
  bool touched_ = false;
  int64_t staged_pieces_ = 0;  // The pieces of earlier calls.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_STAGED_H_
