// Tests of the teams' commands, of probes, and of the combination of turns.
#include "benchmarks/all_reduce/teams.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce/nccl_log.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The commands that start teams.

// Returns the command, the number of launched processes, the number of ranks,
// and the ranks' variables. TMPDIR is omitted if there is no MPI folder.
std::string CommandText(const Team& team, int ranks,
                        const std::string& mpi_folder = "",
                        int32_t peer_algorithm = 0) {
  const TeamSetting setting = {.folder = "/bin",
                               .store = "/store",
                               .mpi_folder = mpi_folder,
                               .cores = 2,
                               .timeout = {}};
  TeamCommand command = CommandOf(setting, team, ranks, "name", peer_algorithm);
  std::erase(command.argv, "--allow-run-as-root");  // Only there for root.
  std::string text = absl::StrCat(absl::StrJoin(command.argv, " "), "; ",
                                  command.nproc, " ", command.world_size);
  for (const auto& [name, value] : command.environment) {
    if (name == "HOME") continue;  // Only there if the test has no HOME.
    if (name == "TMPDIR" && mpi_folder.empty()) continue;
    absl::StrAppend(&text, " ", name, "=", value);
  }
  return text;
}

TEST(CommandOfTest, StartsTheRanksOfEveryKind) {
  const std::string mpi =
      "mpirun --oversubscribe -np 3 --bind-to core:overload-allowed "
      "/bin/allreduce_";
  const std::string nccl = "/bin/allreduce_rank_nccl name ";
  // Set if ranks share cores.
  const std::string yields = " OMPI_MCA_mpi_yield_when_idle=1";
  const std::string dynamic = " OMPI_MCA_coll_tuned_use_dynamic_rules=1";
  const std::string one_ccl = "/bin/allreduce_peer_oneccl name /store/oneccl_";
  const std::string one_ccl_environment =
      " CCL_PROCESS_LAUNCHER=none CCL_LOG_LEVEL=error CCL_KVS_IFACE=lo "
      "CCL_ATL_TRANSPORT=ofi CCL_ATL_SHM=1 FI_PROVIDER=tcp FI_TCP_IFACE=lo";
  const std::pair<Team, std::string> cases[] = {
      {{TeamKind::kProcesses, Algorithm::kRing},
       "/bin/allreduce --worker=name --worker_kind=processes --algorithm=ring "
       "--world_size=3; 3 3"},
      {{TeamKind::kThreads},
       "/bin/allreduce --worker=name --worker_kind=threads --algorithm=auto "
       "--world_size=3; 1 3"},
      {{TeamKind::kUpdate},
       "/bin/allreduce --worker=name --worker_kind=update --algorithm=auto "
       "--world_size=3; 1 1"},
      {{TeamKind::kExchange},
       "/bin/allreduce --worker=name --worker_kind=exchange --algorithm=auto "
       "--world_size=3; 1 1"},
      {{TeamKind::kOpenMpi}, mpi + "peer_mpi name; 1 3" + yields + dynamic},
      {{TeamKind::kMpi}, mpi + "rank_mpi name auto; 1 3" + yields},
      {{TeamKind::kGloo}, "/bin/allreduce_peer_gloo name /store; 3 3"},
      {{TeamKind::kOneCcl},
       one_ccl + "0; 3 3" + one_ccl_environment +
           " CCL_WORKER_OFFLOAD=1 CCL_YIELD=sched_yield CCL_SPIN_COUNT=1"},
      {{TeamKind::kNccl, Algorithm::kRing},
       nccl + "nccl ring; 3 3 NCCL_DEBUG=WARN"},
      {{TeamKind::kPlainNccl, Algorithm::kRing},
       nccl + "NCCL ring; 3 3 NCCL_DEBUG=WARN NCCL_ALGO=Ring"},
      {{TeamKind::kPlainNccl}, nccl + "NCCL auto; 3 3 NCCL_DEBUG=WARN"}};
  for (const auto& [team, text] : cases) {
    EXPECT_EQ(CommandText(team, 3), text);
  }
  // Each rank has its own core.
  for (const auto& [algorithm, setting] :
       {std::pair(0, ""), {1, " CCL_ALLREDUCE=nreduce"}}) {
    EXPECT_EQ(CommandText({TeamKind::kOneCcl}, 2, "", algorithm),
              absl::StrCat(one_ccl, algorithm, "; 2 2", one_ccl_environment,
                           " CCL_WORKER_OFFLOAD=0", setting));
  }
  const std::string long_name = "/memory/" + std::string(100, 'x');
  for (const auto& [folder, temporary] :
       {std::pair<std::string, std::string>("/memory/x", "/memory/x"),
        {long_name, "/tmp"}}) {
    EXPECT_EQ(CommandText({TeamKind::kOpenMpi}, 2, folder),
              absl::StrCat("mpirun --oversubscribe -np 2 "
                           "/bin/allreduce_peer_mpi name; 1 2 "
                           "OMPI_MCA_btl_vader_backing_directory=",
                           folder, " TMPDIR=", temporary, dynamic));
  }
}

// The teams' ranks are nccl_rank_fake. They write a log before they are timed,
// and none while they are timed. Our ring makes one call.
TEST(AllReduceTeamsTest, ReadsTheLogOfTeamsOnGpusBeforeTheyAreTimed) {
  const absl::StatusOr<TemporaryFolder> folder =
      TemporaryFolder::Create("programs");
  ASSERT_THAT(folder, IsOk());
  std::filesystem::create_symlink(
      std::filesystem::absolute("benchmarks/all_reduce/nccl_rank_fake"),
      folder->path() + "/allreduce_rank_nccl");
  const AllReduceSettings settings = {
      .backends = {TeamKind::kNccl},
      .algorithms = {Algorithm::kAuto, Algorithm::kRing},
      .buffers = {BufferKind::kGroup},
      .peers = {TeamKind::kPlainNccl},
      .collectives = {Operation::kAllReduce, Operation::kAllGather},
      .sizes = {512, 4096}};
  std::vector<MissingPeer> missing;
  const absl::StatusOr<std::unique_ptr<AllReduceTeams>> teams =
      AllReduceTeams::Start(settings,
                            {.folder = folder->path(),
                             .store = folder->path(),
                             .timeout = absl::Seconds(60)},
                            missing);
  ASSERT_THAT(teams, IsOk());
  EXPECT_THAT(missing, IsEmpty());
  const std::vector<NcclProbe>& probes = (*teams)->probes();
  ASSERT_THAT(probes, SizeIs(4));
  const NcclChoice unknown;
  for (const NcclProbe& probe : probes) {
    const bool ring = probe.team.algorithm == Algorithm::kRing;
    SCOPED_TRACE(Name(probe.team));
    EXPECT_EQ(probe.facts.version, "2.99.0+cuda13.0");
    EXPECT_THAT(probe.facts.transports, ElementsAre("P2P/CUMEM"));
    EXPECT_EQ(probe.facts.environment.at("NCCL_ALGO"),
              ring && IsPeer(probe.team.kind) ? "Ring" : "");
    EXPECT_EQ(probe.gpu, "fakeINFO");
    EXPECT_TRUE(probe.shared_gpu);
    std::vector<NcclChoice> choices;
    for (const NcclProbe::Call& call : probe.calls) {
      choices.push_back(call.choice);
    }
    if (!IsPeer(probe.team.kind)) {
      EXPECT_THAT(choices, AllOf(SizeIs(ring ? 1 : 4), Each(unknown)));
      continue;
    }
    const std::string algorithm = ring ? "RING" : "TREE";
    const NcclChoice low = {algorithm, "LL", "2"};
    const NcclChoice simple = {algorithm, "SIMPLE", "2"};
    EXPECT_THAT(choices, ElementsAre(low, simple, low, simple));
    const TurnRequest request = RequestOf(settings, Operation::kAllReduce, 4096,
                                          {probe.team, BufferKind::kOrdinary});
    const absl::StatusOr<AllReduceTurn> turn =
        (*teams)->TakeTurn(probe.team, request);
    ASSERT_THAT(turn, IsOk());
    EXPECT_EQ(turn->gpu, "fakeWARN");
    EXPECT_EQ(turn->calls.wrong, 0);
  }
  EXPECT_THAT((*teams)->Stop(), IsOk());
}

TEST(CombineTurnsTest, TakesTheSlowestRank) {
  std::vector<AllReduceTurn> ranks(2);
  ranks[0].calls = {{0.5, 1}, 2};
  ranks[1].calls = {{1, 0.5}, 3};
  ranks[0].host_seconds = 0.25;
  ranks[1].host_seconds = 0.5;
  ranks[0].gpu = "H100";
  const absl::StatusOr<AllReduceTurn> all = CombineTurns(ranks);
  ASSERT_THAT(all, IsOk());
  EXPECT_THAT(all->calls.seconds, ElementsAre(1, 1));
  EXPECT_EQ(all->calls.wrong, 5);
  EXPECT_EQ(all->host_seconds, 0.5);
  EXPECT_EQ(all->gpu, "H100");
  ranks[1].calls.seconds.pop_back();
  EXPECT_THAT(CombineTurns(ranks),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
}

}  // namespace
}  // namespace lockstep::benchmarks
