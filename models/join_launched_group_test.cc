// The meeting place under each launcher.
#include "models/join_launched_group.h"

#include <unistd.h>

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "collectives/launch/rank_environment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

absl::StatusOr<std::string> PathIn(
    const std::map<std::string, std::string>& environment) {
  return DerivedRendezvousPath(
      [&](absl::string_view name) -> std::optional<std::string> {
        const auto found = environment.find(std::string(name));
        if (found == environment.end()) return std::nullopt;
        return found->second;
      });
}

TEST(JoinLaunchedGroupTest, TellsOneRunFromAnother) {
  const std::string user = absl::StrCat("/lockstep-", getuid(), "-");
  EXPECT_THAT(PathIn({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}}),
              IsOkAndHolds(absl::StrCat("/tmp", user, "127.0.0.1-29500")));
  EXPECT_THAT(PathIn({{"PMIX_NAMESPACE", "prterun-host-7@1"}}),
              IsOkAndHolds(absl::StrCat("/tmp", user, "prterun_host_7_1-")));
  EXPECT_THAT(PathIn({{"SLURM_JOB_ID", "12"},
                      {"SLURM_STEP_ID", "0"},
                      {"TMPDIR", "/scratch"}}),
              IsOkAndHolds(absl::StrCat("/scratch", user, "12-0")));
}

TEST(JoinLaunchedGroupTest, AsksForAPathIfNothingTellsRunsApart) {
  for (const std::map<std::string, std::string>& environment :
       {std::map<std::string, std::string>{},
        std::map<std::string, std::string>{{"MASTER_ADDR", "127.0.0.1"}}}) {
    EXPECT_THAT(PathIn(environment),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("LOCKSTEP_RENDEZVOUS")));
  }
}

TEST(JoinLaunchedGroupTest, RefusesSeveralHosts) {
  EXPECT_THAT(JoinLaunchedGroup({.rank = 0,
                                 .world_size = 4,
                                 .local_rank = 0,
                                 .local_world_size = 2,
                                 .rendezvous = "/nonexistent"},
                                {}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("of 4 ranks only 2 are on this host")));
}

}  // namespace
}  // namespace lockstep
