// What starts of a judged trainer gave: how each ended and what its ranks
// wrote.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_RUN_TRAINER_RUN_H_
#define LOCKSTEP_CONFORMANCE_CHECK_RUN_TRAINER_RUN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep {

struct TrainerRun {
  // What became of a rank's output.
  struct Rank {
    absl::Status status;  // Of reading it.
    RankOutput output;    // Empty unless `status` is OK.
  };

  enum class End {
    kExited,    // With status 0, every rank that was started.
    kFailed,    // Another status, or a signal.
    kTimedOut,  // It was ended when its time was up.
  };

  int world_size = 1;
  End end = End::kExited;
  // One line on how it failed or how long it had; "" for kExited.
  std::string how;
  // The last lines of what it wrote to its standard output and error, each
  // after "[rank] " where ranks were started one by one; at most 20 lines of at
  // most 200 bytes, printable.
  std::vector<std::string> last_lines;
  std::vector<Rank> ranks;  // world_size of them.
  absl::Duration wall;
};

// Joins the two starts of a run that is stopped and resumed: `first`, which
// ended well, and then `second`, of the same world size. By rank: the steps of
// the second follow those of the first; a tensor that both wrote is the
// first's, which took that step; the evaluation is the second's. How it ended,
// its last lines and its status, which then says that it is of the second
// start, are the second's.
TrainerRun JoinRuns(TrainerRun first, TrainerRun second);

// What a case's starts gave. A resumed run's two starts are joined.
struct CaseRuns {
  TrainerRun one_rank;
  TrainerRun all_ranks;
  // One rank again, each time with the samples of every step in another order
  // (ReorderedStarts): how far they are from one_rank is the trainer's own
  // rounding. Empty where no number is compared.
  std::vector<TrainerRun> reordered;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_RUN_TRAINER_RUN_H_
