#include "collectives/communicator.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/async_communicator.h"
#include "collectives/collective.h"
#include "collectives/pending_collective.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kRank = 1;
constexpr int kRanks = 3;

// Memory for calls of rank 1 of 3.
std::vector<float> x(12);
std::vector<float> y(12);
std::vector<int32_t> z(12);

Buffer Part(std::vector<float>& data, int64_t begin, int64_t count) {
  return Buffer(data).Part(begin, count);
}

TEST(ValidateTest, AcceptsWhatTheInterfacePromises) {
  const std::vector<int64_t> counts = {2, 4, 1};
  const std::vector<Collective> calls = {
      Collective::AllReduce(x, y),
      Collective::AllReduce(Buffer(x)),
      Collective::UniformAllReduce(Buffer(x)),
      Collective::AllReduce(Buffer(nullptr, 0, DataType::kInt64)),
      Collective::Reduce(x, {}, ReduceOp::kMax, 0),  // Not the root.
      Collective::ReduceScatter(x, Part(y, 0, 4)),
      Collective::ReduceScatter(x, Part(x, 4, 4)),  // In place.
      Collective::AllGather(Part(x, 0, 4), y),
      Collective::AllGather(Part(y, 4, 4), y),  // In place.
      Collective::AllGather(Part(x, 0, 4), Part(y, 0, 7), counts),
      Collective::AllGather(Part(y, 2, 4), Part(y, 0, 7), counts),
      Collective::Broadcast(x, 2),
      Collective::Scatter({}, Part(y, 0, 4), 0),
      Collective::Scatter(x, Part(x, 4, 4), 1),
      Collective::Gather(Part(x, 0, 4), {}, 0),
      Collective::Gather(Part(y, 4, 4), y, 1),
      Collective::AllToAll(x, y),
      Collective::Send(x, 0),
      Collective::Receive(x, 2),
      Collective::Barrier()};
  for (const Collective& call : calls) {
    EXPECT_THAT(Validate(call, kRank, kRanks), IsOk())
        << ToString(CallOf(call, kRanks));
  }
}

TEST(ValidateTest, SaysWhatIsWrong) {
  const std::vector<int64_t> two = {1, 2};
  const std::vector<int64_t> negative = {5, -1, 5};
  const std::vector<int64_t> another = {4, 3, 5};
  const std::vector<int64_t> sum = {1, 4, 1};
  const int64_t huge = INT64_MAX / 4;
  struct Case {
    Collective call;
    std::string why;
  };
  const std::vector<Case> cases = {
      {Collective::AllReduce(x, Part(y, 0, 11)),
       "its input has 12 elements and its output 11"},
      {Collective::AllReduce(x, z),
       "its input is float32 and its output int32"},
      {Collective::AllReduce(Part(x, 0, 8), Part(x, 1, 8)),
       "its input and output overlap elsewhere than in place"},
      {Collective::AllReduce(Buffer(nullptr, -1, DataType::kUInt8)),
       "a count is -1"},
      {Collective::Broadcast(Buffer(nullptr, huge, DataType::kFloat32), 0),
       "a count is 2305843009213693951"},
      {Collective::AllGather(Buffer(nullptr, huge, DataType::kFloat32), y),
       "a count is 2305843009213693951"},
      {Collective::Reduce(x, Part(y, 0, 11), ReduceOp::kSum, 1),
       "its input has 12 elements and its output 11"},
      {Collective::Reduce(x, y, ReduceOp::kSum, 3),
       "the root is outside [0, 3)"},
      {Collective::ReduceScatter(x, Part(y, 0, 5)),
       "its input has 12 elements in place of 3 * 5"},
      {Collective::ReduceScatter(x, Part(x, 0, 4)),
       "its input and output overlap elsewhere than in place"},
      {Collective::AllGather(Part(x, 0, 5), y),
       "its output has 12 elements in place of 3 * 5"},
      {Collective::AllGather(Part(x, 0, 2), y, two),
       "it has 2 counts for 3 ranks"},
      {Collective::AllGather(Part(x, 0, 2), y, negative), "a count is -1"},
      {Collective::AllGather(Part(x, 0, 2), y, another),
       "its input has 2 elements, and its own count is 3"},
      {Collective::AllGather(Part(x, 0, 4), y, sum),
       "its output has 12 elements, and the counts are 6"},
      {Collective::Broadcast(x, -1), "the root is outside [0, 3)"},
      {Collective::Scatter(x, Part(y, 0, 5), 1),
       "its input has 12 elements in place of 3 * 5"},
      {Collective::Gather(Part(x, 0, 5), y, 1),
       "its output has 12 elements in place of 3 * 5"},
      {Collective::AllToAll(Part(x, 0, 11), Part(y, 0, 11)),
       "its input has 11 elements in place of 3 * 3"},
      {Collective::AllToAll(x, x), "its input and output overlap"},
      {Collective::Send(x, kRank), "the other rank is the same rank"},
      {Collective::Receive(x, 3), "the other rank is outside [0, 3)"}};
  for (const Case& c : cases) {
    EXPECT_THAT(Validate(c.call, kRank, kRanks),
                StatusIs(absl::StatusCode::kInvalidArgument, c.why))
        << ToString(CallOf(c.call, kRanks));
  }
}

TEST(ValidateTest, GivesTheCauseOfARefusal) {
  const absl::Status cause = absl::ResourceExhaustedError("no memory is left");
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kAllGather, Operation::kBarrier}) {
    const Collective call = Collective::Refused(operation, cause);
    EXPECT_EQ(call.operation, operation);
    EXPECT_EQ(Validate(call, kRank, kRanks), cause);
  }
}

TEST(CallTest, CountsThatDifferAreToldApart) {
  const std::vector<int64_t> a = {3, 4, 5};
  const std::vector<int64_t> b = {4, 4, 4};
  const Call first = CallOf(Collective::AllGather(Part(x, 0, 4), y, a), kRanks);
  const Call second =
      CallOf(Collective::AllGather(Part(x, 0, 4), y, b), kRanks);
  EXPECT_FALSE(Agree(first, second));
  EXPECT_TRUE(Agree(first, first));
  EXPECT_THAT(ToString(first), HasSubstr("AllGather(float32[12], counts #"));
  EXPECT_NE(ToString(first).substr(0, 40), ToString(second).substr(0, 40));
}

TEST(CallTest, AnotherOrderOfAdditionsIsAnotherCall) {
  const Call by_size = CallOf(Collective::AllReduce(Buffer(x)), kRanks);
  const Call uniform = CallOf(Collective::UniformAllReduce(Buffer(x)), kRanks);
  EXPECT_FALSE(Agree(by_size, uniform));
  EXPECT_THAT(ToString(uniform), HasSubstr(", uniform"));
}

// A fake that adds one to each element and fails at failing_count_ elements.
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

class AsyncCommunicatorTest : public testing::Test {
 protected:
  // Starts an AllReduce of the first `count` elements.
  PendingCollective Start(size_t count) {
    return async_->Start(Collective::AllReduce(std::span(data_).first(count)));
  }

  std::vector<int64_t> data_ = std::vector<int64_t>(5);
  CountingCommunicator communicator_;
  std::optional<AsyncCommunicator> async_{std::in_place, communicator_};
};

TEST_F(AsyncCommunicatorTest, RunsCallsInOrderAndWaitsForAll) {
  EXPECT_THAT(async_->Wait(), IsOk());  // Nothing was started.
  for (const size_t count : {5, 2, 4}) Start(count);
  EXPECT_THAT(async_->Wait(), IsOk());
  EXPECT_THAT(communicator_.counts(), ElementsAre(5, 2, 4));
  EXPECT_THAT(data_, ElementsAre(3, 3, 2, 2, 1));
}

TEST_F(AsyncCommunicatorTest, ReturnsTheFirstErrorOnce) {
  communicator_.FailAt(3);
  for (const size_t count : {1, 3, 2}) Start(count);
  EXPECT_THAT(async_->Wait(), StatusIs(absl::StatusCode::kAborted, "told to"));
  EXPECT_THAT(async_->Wait(), IsOk());
  EXPECT_THAT(communicator_.counts(), ElementsAre(1, 3, 2));
}

TEST_F(AsyncCommunicatorTest, EachHandleHasItsOwnCallsStatus) {
  communicator_.FailAt(3);
  const PendingCollective good = Start(1);
  const PendingCollective bad = Start(3);
  EXPECT_THAT(bad.Wait(), StatusIs(absl::StatusCode::kAborted, "told to"));
  EXPECT_TRUE(good.done());
  EXPECT_THAT(good.Wait(), IsOk());
  EXPECT_THAT(bad.Wait(), StatusIs(absl::StatusCode::kAborted, "told to"));
}

TEST_F(AsyncCommunicatorTest, DestructorFinishesWhatWasStarted) {
  for (int i = 0; i < 100; ++i) Start(5);
  async_.reset();
  EXPECT_THAT(data_, Each(100));
}

// A fake that enqueues: a call runs when its handle is waited for.
class EnqueuingCommunicator : public CountingCommunicator {
 public:
  bool enqueues() const override { return true; }
  PendingCollective Start(const Collective& call) override {
    started_by_ = std::this_thread::get_id();
    return PendingCollective(std::make_shared<Enqueued>(*this, call));
  }
  std::thread::id started_by() const { return started_by_; }

 private:
  class Enqueued : public PendingCollective::Progress {
   public:
    Enqueued(Communicator& communicator, const Collective& call)
        : communicator_(communicator), call_(call) {}
    absl::Status Wait() override {
      if (!status_.has_value()) status_ = communicator_.Run(call_);
      return *status_;
    }
    bool done() override { return status_.has_value(); }

   private:
    Communicator& communicator_;
    const Collective call_;
    std::optional<absl::Status> status_;
  };

  std::thread::id started_by_;
};

TEST(AsyncCommunicatorOfAnEnqueuingBackendTest, StartsOnTheCallersThread) {
  EnqueuingCommunicator communicator;
  communicator.FailAt(3);
  std::vector<int64_t> data(5);
  const auto first_of = [&](size_t count) {
    return Collective::AllReduce(std::span(data).first(count));
  };
  {
    AsyncCommunicator async(communicator);
    const PendingCollective good = async.Start(first_of(2));
    EXPECT_EQ(communicator.started_by(), std::this_thread::get_id());
    EXPECT_FALSE(good.done());
    const PendingCollective bad = async.Start(first_of(3));
    EXPECT_THAT(async.Wait(), StatusIs(absl::StatusCode::kAborted, "told to"));
    EXPECT_THAT(async.Wait(), IsOk());
    EXPECT_THAT(good.Wait(), IsOk());
    EXPECT_THAT(bad.Wait(), StatusIs(absl::StatusCode::kAborted, "told to"));
    async.Start(first_of(5));
  }
  // The destructor finishes the last call.
  EXPECT_THAT(communicator.counts(), ElementsAre(2, 3, 5));
  EXPECT_THAT(data, ElementsAre(2, 2, 1, 1, 1));
}

TEST(CommunicatorTest, StartRunsACallToItsEndByDefault) {
  CountingCommunicator communicator;
  communicator.FailAt(3);
  std::vector<int64_t> data(3);
  const PendingCollective good =
      communicator.Start(Collective::AllReduce(std::span(data).first(2)));
  EXPECT_TRUE(good.done());
  EXPECT_THAT(data, ElementsAre(1, 1, 0));
  EXPECT_THAT(good.Wait(), IsOk());
  EXPECT_THAT(communicator.Start(Collective::AllReduce(data)).Wait(),
              StatusIs(absl::StatusCode::kAborted, "told to"));
}

class ObjectsTest : public testing::TestWithParam<Backend> {};

// Returns a string of any bytes, zeros included. It is empty on rank 1, and
// longer than one message for large sizes.
std::string ObjectOf(int rank, size_t size) {
  std::string object(rank == 1 ? 0 : size + static_cast<size_t>(rank), '\0');
  for (size_t i = 0; i < object.size(); ++i) {
    object[i] = static_cast<char>(i * 7 + static_cast<size_t>(rank) * 31);
  }
  return object;
}

TEST_P(ObjectsTest, AllGatherObjectGivesEveryRanksBytes) {
  for (const int world_size : {1, 2, 3, 5}) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{300000}}) {
      std::vector<std::string> want;
      for (int rank = 0; rank < world_size; ++rank) {
        want.push_back(ObjectOf(rank, size));
      }
      const auto statuses =
          RunRanks(GetParam(), world_size, [&](Communicator& communicator) {
            LOCKSTEP_ASSIGN_OR_RETURN(
                const std::vector<std::string> got,
                AllGatherObject(communicator,
                                ObjectOf(communicator.rank(), size)));
            return got == want ? absl::OkStatus()
                               : absl::DataLossError("other bytes");
          });
      EXPECT_THAT(statuses, Each(IsOk())) << world_size << " ranks, " << size;
    }
  }
}

// Reduces losses of 1, 2, 3 and counts of 10, 20, 30.
absl::Status Reduce(Communicator& communicator, bool average, double loss_want,
                    int64_t count_want) {
  double loss = communicator.rank() + 1;
  std::vector<int64_t> counts(3, 10 * (communicator.rank() + 1));
  const std::map<std::string, Buffer> tensors = {{"loss", std::span(&loss, 1)},
                                                 {"counts", counts}};
  LOCKSTEP_RETURN_IF_ERROR(ReduceDict(communicator, tensors, average));
  if (loss == loss_want && counts == std::vector<int64_t>(3, count_want)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(loss, " and ", counts[0]));
}

TEST_P(ObjectsTest, ReduceDictAveragesOrSums) {
  const auto reduce = [](bool average, double loss, int64_t count) {
    return RunRanks(GetParam(), 3, [=](Communicator& c) {
      return Reduce(c, average, loss, count);
    });
  };
  EXPECT_THAT(reduce(true, 2.0, 20), Each(IsOk()));
  EXPECT_THAT(reduce(false, 6.0, 60), Each(IsOk()));
  // The control: a wrong expectation must fail.
  EXPECT_THAT(reduce(true, 6.0, 60),
              Each(StatusIs(absl::StatusCode::kDataLoss, "2 and 20")));
}

TEST_P(ObjectsTest, ReduceDictOfDifferentTensorsSaysWhichAndGoesOn) {
  const auto statuses = RunRanks(GetParam(), 3, [](Communicator& communicator) {
    std::vector<float> a(2, 1.0f);
    std::vector<float> b(communicator.rank() == 2 ? 4 : 3, 1.0f);
    const absl::Status status = ReduceDict(communicator, {{"a", a}, {"b", b}});
    if (a[0] != 1.0f) return absl::DataLossError("a tensor was changed");
    LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
    return status;
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "ranks have different tensors: rank 0 "
                                      "has 'b: float32[3]', rank 2 has "
                                      "'b: float32[4]'")));
  const auto missing = RunRanks(GetParam(), 2, [](Communicator& communicator) {
    std::vector<float> a(2);
    std::map<std::string, Buffer> tensors = {{"a", a}};
    if (communicator.rank() == 1) tensors.clear();
    return ReduceDict(communicator, tensors);
  });
  EXPECT_THAT(missing, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("rank 1 has nothing more"))));
}

TEST_P(ObjectsTest, OnRankRunsThereAlone) {
  const auto statuses = RunRanks(GetParam(), 3, [](Communicator& communicator) {
    const auto fail = [] { return absl::AbortedError("ran"); };
    const bool ran = !OnRank(communicator, 1, fail).ok();
    if (ran != (communicator.rank() == 1)) {
      return absl::DataLossError("ran on the wrong rank");
    }
    if (OnRank(communicator, std::nullopt, fail).ok()) {
      return absl::DataLossError("did not run on every rank");
    }
    return OnRank(communicator, 3, fail);
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "rank 3 is outside [0, 3)")));
}

INSTANTIATE_TEST_SUITE_P(Backends, ObjectsTest,
                         testing::Values(Backend::kThreads,
                                         Backend::kProcesses),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep
