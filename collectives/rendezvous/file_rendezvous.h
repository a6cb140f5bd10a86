// A rendezvous through a file, for ranks on one host.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_FILE_RENDEZVOUS_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_FILE_RENDEZVOUS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {

struct FileRendezvousOptions {
  std::string path;  // Created if absent; must match on all ranks.
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // For each Exchange.
  // Whether the file is in a folder of its own, TemporaryFolder::OpenShared.
  bool own_folder = false;
};

// Opens a rendezvous through a file on one host: no port that could be taken,
// safe in a sandbox. Creates the file if it is absent. The path may be
// /proc/<pid>/fd/<n> of a memfd.
//
// Earlier runs: a rank that opens a file whose writers have all ended empties
// it, unless one of them wrote after this process started and so belongs to
// this run. If a rank dies before a later one even starts, it is therefore
// taken for an earlier run's rank, and is reported at the deadline and not at
// once. A path serves one run at a time, and only processes that see each
// other's process numbers (one pid namespace).
//
// Rank 0 removes the file once all ranks have met. If they never meet, the last
// rank to leave removes it. A file that is not reached by its own name (a
// memfd, a symbolic link) is not removed, but emptied once no rank takes part
// any more.
//
// A path serves one meeting after another. A rank that arrives after all ranks
// have joined a meeting joins the next meeting, even if some ranks still take
// part in the previous one. The next meeting may have another world size.
//
// Errors: kInvalidArgument for a rank outside [0, world_size) or a path that is
// not a regular file; those of TemporaryFolder::OpenShared; the file system's,
// with the path. Exchange also returns kDataLoss, and leaves the file
// unchanged, if the file does not hold a rendezvous.
absl::StatusOr<std::unique_ptr<Rendezvous>> OpenFileRendezvous(
    const FileRendezvousOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_FILE_RENDEZVOUS_H_
