#include "collectives/async_communicator.h"

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/buffer.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/fake_communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;

// Adds one to each element, and fails where it is told to.
class CountingCommunicator : public FakeCommunicator {
 public:
  absl::Status Run(const Collective& call) override {
    const Buffer& data = call.output;
    counts_.push_back(data.count);
    if (data.count == failing_count_) return absl::AbortedError("told to");
    auto* elements = static_cast<int64_t*>(data.data);
    for (int64_t i = 0; i < data.count; ++i) ++elements[i];
    return absl::OkStatus();
  }

  void FailAt(int64_t count) { failing_count_ = count; }
  const std::vector<int64_t>& counts() const { return counts_; }

 private:
  int64_t failing_count_ = -1;
  std::vector<int64_t> counts_;
};

TEST(AsyncCommunicatorTest, RunsCallsInOrderAndWaitsForAll) {
  CountingCommunicator communicator;
  AsyncCommunicator async(communicator);
  EXPECT_THAT(async.Wait(), IsOk());  // Nothing was started.
  std::vector<int64_t> data(5);
  for (size_t count : {5, 2, 4}) {
    async.Start(Collective::AllReduce(std::span(data).first(count)));
  }
  EXPECT_THAT(async.Wait(), IsOk());
  EXPECT_THAT(communicator.counts(), ElementsAre(5, 2, 4));
  EXPECT_THAT(data, ElementsAre(3, 3, 2, 2, 1));
}

TEST(AsyncCommunicatorTest, ReturnsTheFirstErrorOnce) {
  CountingCommunicator communicator;
  communicator.FailAt(3);
  AsyncCommunicator async(communicator);
  std::vector<int64_t> data(5);
  for (size_t count : {1, 3, 2}) {
    async.Start(Collective::AllReduce(std::span(data).first(count)));
  }
  EXPECT_THAT(async.Wait(), StatusIs(absl::StatusCode::kAborted, "told to"));
  EXPECT_THAT(async.Wait(), IsOk());
  EXPECT_THAT(communicator.counts(), ElementsAre(1, 3, 2));
}

TEST(AsyncCommunicatorTest, EachHandleHasItsOwnCallsStatus) {
  CountingCommunicator communicator;
  communicator.FailAt(3);
  AsyncCommunicator async(communicator);
  std::vector<int64_t> data(5);
  const PendingCollective good =
      async.Start(Collective::AllReduce(std::span(data).first(1)));
  const PendingCollective bad =
      async.Start(Collective::AllReduce(std::span(data).first(3)));
  EXPECT_THAT(bad.Wait(), StatusIs(absl::StatusCode::kAborted, "told to"));
  EXPECT_TRUE(good.done());
  EXPECT_THAT(good.Wait(), IsOk());
  EXPECT_THAT(bad.Wait(), StatusIs(absl::StatusCode::kAborted, "told to"));
}

TEST(AsyncCommunicatorTest, DestructorFinishesWhatWasStarted) {
  CountingCommunicator communicator;
  std::vector<int64_t> data(5);
  {
    AsyncCommunicator async(communicator);
    for (int i = 0; i < 100; ++i)
      async.Start(Collective::AllReduce(std::span(data)));
  }
  EXPECT_THAT(data, Each(100));
}

TEST(AsyncCommunicatorTest, SumsOverRanksWhileTheCallerComputes) {
  for (const Backend backend : {Backend::kThreads, Backend::kProcesses}) {
    const auto statuses = RunRanks(backend, 3, [](Communicator& communicator) {
      AsyncCommunicator async(communicator);
      for (int step = 0; step < 20; ++step) {
        std::vector<std::vector<int64_t>> buckets;
        for (int bucket = 0; bucket < 5; ++bucket) {
          buckets.emplace_back(1000 * bucket + step,
                               communicator.rank() + bucket);
        }
        for (auto& bucket : buckets) {
          async.Start(Collective::AllReduce(std::span(bucket)));
        }
        LOCKSTEP_RETURN_IF_ERROR(async.Wait());
        for (int bucket = 0; bucket < 5; ++bucket) {
          for (const int64_t x : buckets[bucket]) {
            if (x != 3 + 3 * bucket) return absl::DataLossError("sum");
          }
        }
        LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
      }
      return absl::OkStatus();
    });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

}  // namespace
}  // namespace lockstep
