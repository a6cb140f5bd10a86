// The conclusions that a rank draws from its knowledge of its group: whether
// the ranks' calls agree, which rank has gone, which rank is late, and the
// words of each error. Pure functions of their arguments: they read no clock
// and no shared memory, and send and wait for nothing. The members of groups
// (host/group_member.h, host/message_member.h) collect the facts.
#ifndef LOCKSTEP_COLLECTIVES_AGREEMENT_AGREEMENT_H_
#define LOCKSTEP_COLLECTIVES_AGREEMENT_AGREEMENT_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/collective.h"

namespace lockstep {

// Two ranks whose calls differ.
struct RankPair {
  int first = -1;  // -1: no calls differ.
  int second = -1;
};

// Compares the calls that ranks have begun. `call_of(rank)` returns a rank's
// call as a const Call*, or null if the rank has not begun it. Returns the
// lowest rank that has begun the call and the lowest rank whose call differs
// from that. Inline, because every call of a group ends with it.
template <typename CallOf>
RankPair FindDisagreement(int world_size, const CallOf& call_of) {
  int first_rank = -1;
  const Call* first = nullptr;
  for (int rank = 0; rank < world_size; ++rank) {
    const Call* const call = call_of(rank);
    if (call == nullptr) continue;
    if (first == nullptr) {
      first_rank = rank;
      first = call;
    } else if (!Agree(*first, *call)) {
      return {first_rank, rank};
    }
  }
  return {};
}

// Returns kInvalidArgument: "ranks disagree on call 2: rank 0 called X at
// a.cc:1, rank 1 called Y at ...".
absl::Status DisagreeOnCall(uint64_t number, int rank, const Call& call,
                            int other_rank, const Call& other);

// Returns OK, or DisagreeOnCall of the ranks that FindDisagreement returns for
// the call of this number. Allocates only for an error.
template <typename CallOf>
absl::Status CompareCalls(uint64_t number, int world_size,
                          const CallOf& call_of) {
  const auto [first, second] = FindDisagreement(world_size, call_of);
  if (first < 0) return absl::OkStatus();
  return DisagreeOnCall(number, first, *call_of(first), second,
                        *call_of(second));
}

// The facts that a rank knows about another rank at one moment.
struct RankFacts {
  bool reached = false;      // It has begun the running call of all ranks.
  bool awaited = false;      // This rank waits for a step of that rank.
  bool left = false;         // It has left the group.
  bool lost = false;         // It has died, or cannot be reached any more.
  int64_t silent_nanos = 0;  // How long ago it last showed that it waits.
};

// A rank that can make no more calls.
struct GoneRank {
  int rank = -1;  // -1: no rank has gone.
  bool left = false;
};

// Returns the lowest rank other than `own` that ends the wait of `own` with an
// error: a rank that is lost, or one that left although this rank waits for it,
// or although it has not begun a call of all ranks. A rank that was lost after
// it left did not fail. facts: by rank. with_partner: `own` is in a call of two
// ranks, which no third rank needs to begin.
GoneRank FindGone(std::span<const RankFacts> facts, int own, bool with_partner);

// Returns the rank that holds `own` up at its deadline. The suspects are the
// ranks other than `own` that have not begun the call; if there are none, all
// ranks other than `own`, or no rank if only_missing is set. Returns the lowest
// suspect that is awaited and has been silent for longer than patience_nanos.
// If there is none, returns the suspect that has been silent for longest, since
// ranks that wait are not silent; -1 if there is no suspect. facts: by rank.
int FindLate(std::span<const RankFacts> facts, int own, int64_t patience_nanos,
             bool only_missing = false);

// Returns "rank 1", "rank 1 (pid 77)" or "rank 1 (pid 77 on node3)". pid: 0 if
// it is not known. host: empty for this host.
std::string RankName(int rank, int64_t pid, absl::string_view host = "");

// The rank that sees a failure, and the call in which it sees the failure.
struct Witness {
  int rank;
  uint64_t number;  // Of its running or last call of all ranks; 0: it had none.
  bool with_partner;  // It is in `call` with one other rank, after that call.
  const Call& call;
};

// Return the error of a rank that left, was lost or is late; `name` is its
// RankName. how: for example "died". obstacle: a phrase that begins with ": ",
// or empty. The messages:
//   kUnavailable       rank 1 left the group (seen by rank 0 in call 12,
//                      Barrier() at a.cc:1)
//   kUnavailable       rank 1 (pid 77) died (seen by rank 0 after call 12,
//                      Receive(uint8[4], from rank 1) at a.cc:1)
//   kDeadlineExceeded  rank 1 did not come within 1m (seen by rank 0, joining
//                      the group)
absl::Status LeftError(absl::string_view name, const Witness& witness);
absl::Status LostError(absl::string_view name, absl::string_view how,
                       const Witness& witness);
absl::Status LateError(absl::string_view name, absl::Duration timeout,
                       absl::string_view obstacle, const Witness& witness);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_AGREEMENT_AGREEMENT_H_
