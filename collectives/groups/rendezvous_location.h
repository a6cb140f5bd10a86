// Decides where the ranks of a launched run meet. Every rank decides alone,
// from its environment, and all ranks of a run find the same place.
#ifndef LOCKSTEP_COLLECTIVES_GROUPS_RENDEZVOUS_LOCATION_H_
#define LOCKSTEP_COLLECTIVES_GROUPS_RENDEZVOUS_LOCATION_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/process.h"
#include "collectives/groups/rank_environment.h"

namespace lockstep {

// Returns the nearest ancestor of this process that does not belong to this
// rank: its environment does not hold every one of `variables` with this
// process's value. All ranks that one launcher started on this host find the
// same process, even if shells or other programs run between launcher and rank.
//
// variables: the names of the variables that tell one rank from another and one
// launcher from another.
ProcessIdentity FindLauncherProcess(
    std::span<const absl::string_view> variables);

// The place where ranks meet: a file, or a port of rank 0's host.
struct RendezvousLocation {
  // At most one of `file` and `folder` is set. If both are empty, ranks meet at
  // the port.
  std::string file = {};  // An existing file, or one that any rank may create.
  std::string folder = {};  // A private folder, to be created, for a file.
  std::string address = {};
  int port = 0;
  std::string listen_address = {};
  std::string token = {};

  friend bool operator==(const RendezvousLocation&,
                         const RendezvousLocation&) = default;
};

// Returns the meeting place. All ranks of a run choose the same one without
// communicating. The first rule that applies decides:
//
//   LOCKSTEP_RENDEZVOUS    if all ranks are on one host: the file of that path.
//                          Our launcher sets this variable.
//   LOCKSTEP_MASTER_PORT   this port of MASTER_ADDR's host, or of 127.0.0.1 if
//                          MASTER_ADDR is not set and all ranks are on one
//                          host.
//   all ranks on one host  a folder in TMPDIR, or in /tmp. Its name consists of
//                          the user and a hash of the variables that tell this
//                          run from others: torchrun's run id, restart and
//                          port, or mpirun's namespace, each with the
//                          launcher's process; srun's job and step; or
//                          MASTER_ADDR and MASTER_PORT.
//   several hosts          MASTER_PORT of MASTER_ADDR's host. Under torchrun,
//                          whose agent uses that port, the next port.
//
// A port needs LOCKSTEP_TOKEN, unless its address is a loopback address. Rank 0
// listens at LOCKSTEP_LISTEN_ADDRESS if that is set.
//
// launcher: the result of FindLauncherProcess(), for torchrun and mpirun.
// Errors: kInvalidArgument, one line that names the variable that is missing or
// is not a port.
absl::StatusOr<RendezvousLocation> ChooseRendezvousLocation(
    const RankEnvironment& environment, EnvironmentLookup lookup,
    const ProcessIdentity& launcher);

// Returns the same from the variables of this process, whose launcher it finds.
absl::StatusOr<RendezvousLocation> ChooseRendezvousLocation(
    const RankEnvironment& environment);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_GROUPS_RENDEZVOUS_LOCATION_H_
