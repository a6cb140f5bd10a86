// Where launched ranks meet.
#include "models/join_launched_group.h"

#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/process_group.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {
namespace {

// The variables that tell one run of a launcher from another.
constexpr std::pair<absl::string_view, absl::string_view> kRunVariables[] = {
    {"PMIX_NAMESPACE", ""},
    {"SLURM_JOB_ID", "SLURM_STEP_ID"},
    {"MASTER_ADDR", "MASTER_PORT"},
};

// `text` as part of a file name.
std::string FileNamePart(std::string text) {
  for (char& c : text) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.') {
      c = '_';
    }
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> DerivedRendezvousPath(EnvironmentLookup lookup) {
  for (const auto& [first, second] : kRunVariables) {
    const std::optional<std::string> a = lookup(first);
    const std::optional<std::string> b =
        second.empty() ? std::string() : lookup(second);
    if (!a.has_value() || !b.has_value()) continue;
    return absl::StrCat(lookup("TMPDIR").value_or("/tmp"), "/lockstep-",
                        getuid(), "-", FileNamePart(*a), "-", FileNamePart(*b));
  }
  return absl::InvalidArgumentError(
      "LOCKSTEP_RENDEZVOUS is not set, and neither is what would tell this run "
      "from another: set it to the path of a file, the same for every rank");
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinLaunchedGroup(
    const RankEnvironment& environment, const GroupOptions& options) {
  if (environment.local_world_size != environment.world_size) {
    return absl::UnimplementedError(absl::StrCat(
        "of ", environment.world_size, " ranks only ",
        environment.local_world_size,
        " are on this host: ranks on several hosts are not supported"));
  }
  std::string path = environment.rendezvous;
  if (path.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(path,
                              DerivedRendezvousPath(LookUpProcessEnvironment));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Rendezvous> rendezvous,
      OpenFileRendezvous({.path = path,
                          .rank = environment.rank,
                          .world_size = environment.world_size,
                          .timeout = options.timeout}));
  return JoinProcessGroup(*rendezvous, options);
}

}  // namespace lockstep
