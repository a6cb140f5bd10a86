// The process that started the ranks of this host.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCHER_PROCESS_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCHER_PROCESS_H_

#include <span>

#include "absl/strings/string_view.h"
#include "collectives/rendezvous/process_identity.h"

namespace lockstep {

// The nearest ancestor of this process that does not belong to this rank, that
// is, whose environment does not have `variables` as this process has them: all
// ranks that one launcher started on this host find the same, also those that
// shells or other programs stand before.
//
// variables: names of those that tell a rank from others and one launcher's
// from another's.
ProcessIdentity FindLauncherProcess(
    std::span<const absl::string_view> variables);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCHER_PROCESS_H_
