// What the steps of ResNet-18 take of a process's memory: in a program of its
// own, since it is to have one thread when it begins.
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/timers.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/host_group.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

// The estimate that refuses what will not fit holds, and is not far off.
TEST(SyncBnNetworkMemoryTest, NeedsTheMemoryThatIsAskedFor) {
  constexpr int64_t kBatch = 8;
  const auto steps = [](Communicator& group) -> absl::Status {
    CallTiming timing = {.clock = SteadySeconds, .call = {}};
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<SyncBnNetwork> network,
        SyncBnNetwork::Create(group, timing, /*seed=*/3, kBatch));
    for (const SyncBnSubject subject :
         {SyncBnSubject::kLocal, SyncBnSubject::kSync, SyncBnSubject::kSplit}) {
      SyncBnRequest request;
      request.subject = subject;
      request.network = 1;
      request.layer.n = kBatch;
      LOCKSTEP_RETURN_IF_ERROR(network->Time(request).status());
    }
    return absl::OkStatus();
  };
  const absl::StatusOr<int64_t> grown =
      ResidentGrowth([] { return absl::OkStatus(); },
                     [&] { return RunOnThreads(1, GroupOptions(), steps); });
  ASSERT_THAT(grown, IsOk());
  SyncBnSettings settings;
  settings.world_size = 1;
  settings.per_rank_batch = kBatch;
  const int64_t needed = NetworkMemoryNeeded(settings);
  EXPECT_LT(*grown, needed);
  EXPECT_GT(*grown, needed / 2);
}

}  // namespace
}  // namespace lockstep::benchmarks
