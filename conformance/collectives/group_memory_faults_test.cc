// Injects faults while ranks share their buffers. A rank ends while it reads
// and writes the other ranks' memory, or between two buckets of gradients in
// that memory.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/injected_fault.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/train/data_parallel.h"

namespace lockstep::conformance {
namespace {

// Tests a rank that ends or stops while it reads and writes the other ranks'
// memory: between the two barriers of a direct call. The victim must not access
// one page in the middle of its own buffer. The access raises a signal, whose
// handler strikes.

constexpr int64_t kInsideCount = 60000;  // Divisible by 2 to 5.

struct InsideStrike {
  SharedTime* struck;
  int signal;
};
InsideStrike inside_strike;

void StrikeInside(int) {
  inside_strike.struck->Set();
  SendSignal(getpid(), inside_strike.signal);
}

// Returns what the victim itself reads or writes in the call.
std::span<float> VictimsPart(const CallPlan& call,
                             const CallBuffers<float>& buffers, int victim,
                             int world_size) {
  const size_t segment = buffers.count / static_cast<size_t>(world_size);
  const auto rank = static_cast<size_t>(victim);
  switch (call.operation) {
    case 0:
      return buffers.one.subspan(rank * segment, segment);
    case 3:
      return buffers.many.subspan(rank * buffers.count, buffers.count);
    case 4:
      return buffers.other.subspan(rank * segment, segment);
    case 1:
    case 6:
      return buffers.one;
    default:
      return buffers.many;
  }
}

absl::Status ForbidMiddle(std::span<float> part) {
  constexpr uintptr_t kPage = 4096;
  const auto middle =
      reinterpret_cast<uintptr_t>(part.data() + part.size() / 2);
  void* const page = reinterpret_cast<void*>(middle / kPage * kPage);
  struct sigaction action = {};
  action.sa_handler = StrikeInside;
  if (sigaction(SIGSEGV, &action, nullptr) != 0 ||
      mprotect(page, kPage, PROT_NONE) != 0) {
    return absl::InternalError("cannot forbid a page");
  }
  return absl::OkStatus();
}

// Checks that an all-reduce was under way: the first of the victim's sums are
// in this rank's output, and the last are not.
absl::Status CheckHalfReduced(const CallBuffers<float>& buffers,
                              const FaultPlan& plan, int rank) {
  const auto ranks = static_cast<size_t>(plan.world_size);
  const size_t segment = buffers.count / ranks;
  const std::span<const float> part =
      buffers.one.subspan(static_cast<size_t>(plan.victim) * segment, segment);
  const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
  const auto own = static_cast<float>(rank + 1);
  if (part.front() == sum && part.back() == own) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the victim's sums begin with ",
                                          part.front(), " and end with ",
                                          part.back()));
}

absl::Status RunRankInside(Communicator& communicator, const FaultPlan& plan,
                           const CallPlan& call, SharedTime& struck) {
  const int rank = communicator.rank();
  LOCKSTEP_ASSIGN_OR_RETURN(const CallMemory memory,
                            CallMemory::Create(communicator, Memory::kGroup));
  const CallBuffers<float> buffers(memory, call.count, plan.world_size);
  for (const std::span<float> buffer :
       {buffers.one, buffers.other, buffers.many, buffers.others}) {
    std::ranges::fill(buffer, static_cast<float>(rank + 1));
  }
  LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
  if (rank == plan.victim) {
    inside_strike = {&struck, plan.fault == Fault::kKilled ? SIGKILL : SIGSTOP};
    LOCKSTEP_RETURN_IF_ERROR(
        ForbidMiddle(VictimsPart(call, buffers, plan.victim, plan.world_size)));
  }
  const absl::Status status = MakeCall<float>(communicator, call, memory);
  if (status.ok()) return absl::InternalError("nothing went wrong");
  if (call.operation == 0) {
    LOCKSTEP_RETURN_IF_ERROR(CheckHalfReduced(buffers, plan, rank));
  }
  return CheckReport(communicator, plan, struck, status);
}

class DirectFaultTest : public testing::TestWithParam<int> {};

TEST_P(DirectFaultTest, ARankThatEndsWhileItReducesIsNamed) {
  for (const Fault fault : {Fault::kKilled, Fault::kStopped}) {
    for (int world_size = 2; world_size <= 5; ++world_size) {
      // The other ranks wait for the deadline, so only one size is tried.
      if (fault == Fault::kStopped && world_size != 3) continue;
      FaultPlan plan = PlanOf(0);
      plan.world_size = world_size;
      plan.victim = world_size / 2;
      plan.fault = fault;
      // The root of a gather writes. In a broadcast or a scatter, the other
      // ranks write.
      const int root =
          GetParam() == 5 ? plan.victim : (plan.victim + 1) % world_size;
      const CallPlan call = {GetParam(), kInsideCount, ReduceOp::kSum, root};
      SCOPED_TRACE(ToString(plan));
      ExpectReports(
          Backend::kProcesses, plan,
          [&](Communicator& c, SharedTime& struck) {
            return RunRankInside(c, plan, call, struck);
          },
          IsCause(plan));
    }
  }
}

std::string OperationName(const testing::TestParamInfo<int>& info) {
  constexpr const char* kNames[] = {"AllReduce",     "Broadcast", "AllGather",
                                    "ReduceScatter", "Reduce",    "Gather",
                                    "Scatter",       "AllToAll"};
  return kNames[info.param];
}
INSTANTIATE_TEST_SUITE_P(Operations, DirectFaultTest, testing::Range(0, 8),
                         OperationName);

// Tests a rank that ends, stops or disagrees between two buckets of a step's
// gradients, which lie in the group's memory.

constexpr int kBuckets = 4;
// Over 16 KiB, so that the buckets are not staged.
constexpr int64_t kBucketElements = 20000;

// Strikes before the reducer's call `plan.call`.
class StrikingGroup : public ForwardingCommunicator {
 public:
  StrikingGroup(Communicator& inner, const FaultPlan& plan, SharedTime& struck)
      : ForwardingCommunicator(inner), plan_(plan), struck_(struck) {}

  absl::Status Run(const Collective& call) override {
    if (rank() != plan_.victim || calls_++ != plan_.call) {
      return inner().Run(call);
    }
    if (plan_.fault != Fault::kDisagrees) {
      Strike(plan_, struck_);
      // Another thread may take the signal, and this thread stops only later.
      while (true) pause();
    }
    struck_.Set();
    Collective other = call;
    other.op = ReduceOp::kMax;
    return inner().Run(other);
  }

 private:
  const FaultPlan& plan_;
  SharedTime& struck_;
  int calls_ = 0;  // Only the reducer's thread makes calls.
};

// Runs one step of a reducer. Sets `handed_over` to the number of buckets that
// were handed over.
absl::Status ReduceStep(GradientReducer& reducer, Parameters& parameters,
                        const Communicator& communicator, int& handed_over) {
  const int ranks = communicator.world_size();
  std::ranges::fill(parameters.gradients(),
                    static_cast<float>(communicator.rank() + 1));
  for (int i = kBuckets - 1; i >= 0; --i) reducer.MarkReady(i);
  handed_over = 0;
  absl::Status wrong;
  absl::Status status = reducer.Finish([&](int64_t begin, int64_t end) {
    ++handed_over;
    for (const float sum : parameters.gradients().subspan(
             static_cast<size_t>(begin), static_cast<size_t>(end - begin))) {
      if (sum == static_cast<float>(ranks * (ranks + 1) / 2)) continue;
      wrong = absl::DataLossError(absl::StrCat("a sum is ", sum));
    }
  });
  return wrong.ok() ? status : wrong;
}

absl::Status ReduceGradients(Communicator& communicator, const FaultPlan& plan,
                             Backend backend, SharedTime& struck) {
  StrikingGroup group(communicator, plan, struck);
  Parameters parameters({{"a", {kBucketElements}},
                         {"b", {kBucketElements}},
                         {"c", {kBucketElements}},
                         {"d", {kBucketElements}}});
  const float* const before = parameters.gradients().data();
  LOCKSTEP_RETURN_IF_ERROR(PlaceGradientsInGroup(group, parameters).status());
  if (parameters.gradients().data() == before) {
    return absl::InternalError("the gradients are not in the group's memory");
  }
  GradientReducer reducer(group, parameters, /*bucket_bytes=*/1);
  LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
  for (int step = 0; step <= plan.call / kBuckets; ++step) {
    int handed_over = 0;
    const absl::Status status =
        ReduceStep(reducer, parameters, communicator, handed_over);
    if (status.ok()) continue;
    // The victim has met all other ranks in the earlier buckets. Over TCP, its
    // last messages may not have arrived.
    const int due = plan.call % kBuckets;
    if (step != plan.call / kBuckets || handed_over > due ||
        (backend == Backend::kProcesses && handed_over != due)) {
      return absl::InternalError(
          absl::StrCat(handed_over, " buckets of step ", step,
                       " were handed over: ", std::string(status.message())));
    }
    return CheckReport(communicator, plan, struck, status);
  }
  return absl::InternalError("nothing went wrong");
}

class ReducerFaultTest : public testing::TestWithParam<Backend> {};

TEST_P(ReducerFaultTest, ARankThatEndsBetweenTwoBucketsIsNamed) {
  const Backend backend = GetParam();
  if (!IsBuilt(backend)) GTEST_SKIP() << "built without OpenSSL";
  for (const Fault fault :
       {Fault::kKilled, Fault::kStopped, Fault::kDisagrees}) {
    for (const int call : {1, 2 * kBuckets + 3}) {
      FaultPlan plan = PlanOf(0);
      plan.world_size = 3;
      plan.victim = 1;
      plan.fault = fault;
      plan.call = call;
      plan.delay_us = 0;
      SCOPED_TRACE(ToString(plan));
      ExpectReports(
          backend, plan,
          [&plan, backend](Communicator& c, SharedTime& struck) {
            return ReduceGradients(c, plan, backend, struck);
          },
          IsCause(plan, "data_parallel.cc"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ReducerFaultTest,
                         testing::Values(Backend::kProcesses, Backend::kTcp),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep::conformance
