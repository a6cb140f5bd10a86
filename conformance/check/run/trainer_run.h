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
  // How it failed or how long it had, in one line; "" for kExited.
  std::string how;
  // The last lines of its standard output and error, printable: at most 20, of
  // at most 200 bytes. Each begins with "[rank] " if ranks were started one by
  // one.
  std::vector<std::string> last_lines;
  std::vector<Rank> ranks;  // world_size of them.
  absl::Duration wall;
};

// Joins the two starts of a run that is stopped and resumed: `first`, which
// ended well, and then `second`, of the same world size. By rank: the steps of
// the second follow those of the first; of a tensor that both wrote, the
// first's is kept, which took that step; the evaluation is the second's. So are
// how the run ended, its last lines and a rank's failure, which says that it
// came after the resume.
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
