// Rendezvous through a file on one host: no port to clash, safe in a sandbox.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_FILE_RENDEZVOUS_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_FILE_RENDEZVOUS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {

struct FileRendezvousOptions {
  std::string path;  // Created if absent; all ranks name the same file.
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // For each Exchange.
};

// Opens (and creates) the file. The path may be /proc/<pid>/fd/<n> of a memfd.
//
// Earlier runs: a rank that comes to a file whose writers have all ended
// empties it, unless one of them wrote after this process started and so
// belongs to this run. A rank that died before a later one even started is thus
// taken for an earlier run's: it is then reported at the deadline and not at
// once. A path is for one run at a time, and for processes that see each
// other's numbers (one pid namespace).
//
// Rank 0 removes the file once all ranks have met; if they never do, the last
// to go removes it. What is not reached by its own name (a memfd, a symbolic
// link) is emptied, once nobody takes part any more, and not removed.
//
// A path serves one meeting after the other: who comes when all ranks have come
// to a meeting goes to the next, also while some still are at the last. The
// world size may be another then.
//
// The first error of one rank is what the others get, too, at once, and what
// every later Exchange returns.
//
// Errors: kInvalidArgument for a rank outside [0, world_size) or a path that is
// not a regular file; the file system's, with the path. Exchange also returns
// kDataLoss if the file holds something else than a rendezvous: it is then left
// as it is.
absl::StatusOr<std::unique_ptr<Rendezvous>> OpenFileRendezvous(
    const FileRendezvousOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_FILE_RENDEZVOUS_H_
