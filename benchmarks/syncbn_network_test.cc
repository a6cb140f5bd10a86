// Steps of ResNet-18 on one image or two.
#include "benchmarks/syncbn_network.h"

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/steady_clock.h"
#include "benchmarks/syncbn_plan.h"
#include "benchmarks/syncbn_probe.h"
#include "benchmarks/syncbn_turn.h"
#include "collectives/call_site.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/group_buffer.h"
#include "collectives/group_options.h"
#include "collectives/host/run_on_threads.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

SyncBnRequest Step(SyncBnSubject subject) {
  SyncBnRequest request;
  request.subject = subject;
  request.network = 1;
  request.layer.n = 2;
  return request;
}

// ResNet-18 has 17 batch norms, since d2l's shortcuts have none: 1, and in each
// of 8 blocks 2; each sends one message forward and one backward.
TEST(SyncBnNetworkTest, StepsAndCountsMessages) {
  const SyncBnSubject subjects[] = {SyncBnSubject::kLocal, SyncBnSubject::kSync,
                                    SyncBnSubject::kSplit};
  RankTurn turns[3][2];
  const auto run = [&](Communicator& group) -> absl::Status {
    Probe probe = {.clock = SteadySeconds, .call = {}};
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<SyncBnNetwork> network,
        SyncBnNetwork::Create(group, probe, /*seed=*/3, /*batch=*/2));
    for (size_t i = 0; i < 3; ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(turns[i][group.rank()],
                                network->Time(Step(subjects[i])));
    }
    return absl::OkStatus();
  };
  ASSERT_THAT(RunOnThreads(2, GroupOptions(), run), IsOk());
  for (size_t i = 0; i < 3; ++i) {
    const absl::StatusOr<TeamTurn> turn = CombineTurns(turns[i]);
    ASSERT_THAT(turn, IsOk());
    EXPECT_EQ(turn->wrong, 0);
    ASSERT_EQ(turn->forward.size(), 1u);
    EXPECT_GT(turn->forward[0].seconds, 0);
    EXPECT_EQ(turn->forward[0].messages, i == 2 ? 34 : 0);
  }
}

// On rank 1 the first element of every sum of floats has another last bit.
class Corrupting : public Communicator {
 public:
  explicit Corrupting(Communicator& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int world_size() const override { return group_.world_size(); }
  absl::Status Run(const Collective& call) override {
    LOCKSTEP_RETURN_IF_ERROR(group_.Run(call));
    if (rank() == 1 && call.operation == Operation::kAllReduce) {
      *static_cast<unsigned char*>(call.output.data) ^= 1;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    return group_.Allocate(bytes, site);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override {
    return group_.Split(color, key, site);
  }

 private:
  Communicator& group_;
};

TEST(SyncBnNetworkTest, CountsGradientsThatDifferBetweenRanks) {
  int64_t wrong[2] = {0, 0};
  const auto run = [&](Communicator& group) -> absl::Status {
    Corrupting corrupting(group);
    Probe probe = {.clock = SteadySeconds, .call = {}};
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<SyncBnNetwork> network,
        SyncBnNetwork::Create(corrupting, probe, /*seed=*/3, /*batch=*/1));
    LOCKSTEP_ASSIGN_OR_RETURN(const RankTurn turn,
                              network->Time(Step(SyncBnSubject::kSync)));
    wrong[group.rank()] = turn.wrong;
    return absl::OkStatus();
  };
  ASSERT_THAT(RunOnThreads(2, GroupOptions(), run), IsOk());
  EXPECT_EQ(wrong[0], 0);
  EXPECT_GT(wrong[1], 0);
}

}  // namespace
}  // namespace lockstep
