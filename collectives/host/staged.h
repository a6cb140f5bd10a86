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

// The direct algorithm through memory of the region, a piece of the message
// after the other. Of each piece, two ranks stage all that they have, and each
// reduces all of it; more ranks stage what the others reduce, reduce their own
// share and stage that, and copy the others' shares. A meeting separates the
// steps of a piece, but a step is taken for one piece while an earlier one has
// its next, so that there is one meeting for a piece, and one more. The order
// of additions is that of schedule.h, as of RunDirect.
//
// Borrows the member. Not thread safe.
class StagedReduction {
 public:
  explicit StagedReduction(GroupMember& member);

  // Whether a call can go this way: an AllReduce of two ranks or more.
  bool Takes(const Collective& call) const;

  // Before the member enters a call that may go this way, on a rank whose
  // buffers the others cannot reach: saves a meeting. Not once the group has
  // failed: others may still read.
  void StageFirst(const Collective& call) { Stage(call, 0); }

  // Runs the call that the member has entered. all_staged: every rank has
  // called StageFirst; staged: this one has. Cost, of n bytes: each rank writes
  // n bytes to the region and reads n from it, or of more than two ranks 2
  // (P-1)/P n.
  absl::Status Run(const Collective& call, bool all_staged, bool staged);

 private:
  // Segment `index` of the message, as far as it is in the piece.
  Segment PartOf(const Collective& call, int index, int64_t piece) const;
  int64_t Stride(const Collective& call, int64_t piece) const;
  // What `from` stages of that part of the piece.
  std::byte* Staged(const Collective& call, int from, int index,
                    int64_t piece) const;
  // Whether this rank reduces that segment.
  bool Reduces(int index) const { return all_reduce_all_ || index == rank_; }

  void Stage(const Collective& call, int64_t piece);
  void Reduce(const Collective& call, int64_t piece);
  void CopyOut(const Collective& call, int64_t piece);

  GroupMember& member_;
  const int rank_;
  const int world_size_;
  const bool all_reduce_all_;
  const int64_t part_bytes_;  // Of a segment, in one piece.
  bool touched_ = false;
  int64_t staged_pieces_ = 0;  // In the calls before this one.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_STAGED_H_
