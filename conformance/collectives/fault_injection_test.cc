// Two hundred groups of each backend (in a slice fifty, and twenty of `tcp`),
// in each of which a random rank is killed, stopped or made to disagree at a
// random call: every other rank must report that cause, soon, and nothing may
// be left behind.
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {
namespace {

constexpr int kRuns = 200;
constexpr int kLots = 20;  // Of runs: a test each, so that Bazel can shard.
constexpr int kMaxCalls = 100000;

// The bounds that collectives/README.md promises.
constexpr absl::Duration kSoon = absl::Seconds(1);
constexpr absl::Duration kDeadline = absl::Seconds(1);

enum class Fault { kKilled, kStopped, kDisagrees };

struct Plan {
  uint32_t seed;
  int world_size;
  int victim;
  int call;  // Counted from 0.
  Fault fault;
  int delay_us;    // From the start of the call, of kKilled and kStopped.
  int difference;  // Of kDisagrees: what differs.
};

Plan PlanOf(uint32_t seed) {
  std::mt19937 random(seed);
  Plan plan;
  plan.seed = seed;
  plan.world_size = 2 + static_cast<int>(random() % 4);
  plan.victim = static_cast<int>(random() % plan.world_size);
  plan.call = static_cast<int>(random() % 30);
  // One in ten is stopped, as the others then wait for the deadline.
  plan.fault = seed % 10 == 0  ? Fault::kStopped
               : seed % 2 == 0 ? Fault::kKilled
                               : Fault::kDisagrees;
  plan.delay_us = random() % 2 == 0 ? 0 : static_cast<int>(random() % 500);
  plan.difference = static_cast<int>(random() % 6);
  return plan;
}

std::string ToString(const Plan& plan) {
  const char* const faults[] = {"killed", "stopped", "disagrees"};
  return absl::StrCat(
      "seed ", plan.seed, ": rank ", plan.victim, " of ", plan.world_size, " ",
      faults[static_cast<int>(plan.fault)], " at call ", plan.call);
}

struct CallPlan {
  int operation;
  int64_t count;
  ReduceOp op;
  int root;
};

CallPlan CallPlanOf(const Plan& plan, int call) {
  std::mt19937 random(plan.seed * 1000003u + static_cast<uint32_t>(call));
  CallPlan result;
  result.operation = static_cast<int>(random() % 8);
  constexpr int64_t kCounts[] = {1, 100, 5000, 100000};
  result.count = kCounts[random() % 4];
  result.op = random() % 2 == 0 ? ReduceOp::kSum : ReduceOp::kMax;
  result.root = static_cast<int>(random() % plan.world_size);
  return result;
}

template <typename T>
absl::Status Make(Communicator& communicator, const CallPlan& call) {
  const size_t count = static_cast<size_t>(call.count);
  const size_t all = count * static_cast<size_t>(communicator.world_size());
  std::vector<T> one(count), other(count), many(all), others(all);
  switch (call.operation) {
    case 0:
      return communicator.AllReduce(one, call.op);
    case 1:
      return communicator.Broadcast(one, call.root);
    case 2:
      return communicator.AllGather(one, many);
    case 3:
      return communicator.ReduceScatter(many, one, call.op);
    case 4:
      return communicator.Reduce(other, one, call.op, call.root);
    case 5:
      return communicator.Gather(one, many, call.root);
    case 6:
      return communicator.Scatter(many, one, call.root);
    default:
      return communicator.AllToAll(others, many);
  }
}

// The same call but for one thing.
absl::Status MakeOther(Communicator& communicator, CallPlan call,
                       int difference) {
  switch (difference) {
    case 0:
      ++call.count;
      return Make<float>(communicator, call);
    case 1:
      return Make<int32_t>(communicator, call);
    case 2:
      call.operation = (call.operation + 1) % 8;
      return Make<float>(communicator, call);
    case 3:
      // Where there is a root; else another operation.
      if (call.operation != 1 && (call.operation < 4 || call.operation > 6)) {
        call.operation = 1;
      }
      call.root = (call.root + 1) % communicator.world_size();
      return Make<float>(communicator, call);
    case 4: {
      // Another order of additions; that of another operation, where it is one.
      std::vector<float> data(static_cast<size_t>(call.count));
      return communicator.Run(
          Collective::UniformAllReduce(Buffer(data), call.op));
    }
    default:
      return communicator.Barrier();
  }
}

int64_t NowNanos() {
  return std::chrono::steady_clock::now().time_since_epoch() /
         std::chrono::nanoseconds(1);
}

// When the fault struck, in memory that all ranks share.
class SharedTime {
 public:
  SharedTime()
      : nanos_(new (mmap(nullptr, sizeof(*nanos_), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                   std::atomic<int64_t>(0)) {}
  ~SharedTime() { munmap(nanos_, sizeof(*nanos_)); }
  void Set() { nanos_->store(NowNanos()); }
  absl::Duration Since() const {
    return absl::Nanoseconds(NowNanos() - nanos_->load());
  }

 private:
  std::atomic<int64_t>* const nanos_;
};

void Signal(const Plan& plan, SharedTime& struck) {
  const int signal = plan.fault == Fault::kKilled ? SIGKILL : SIGSTOP;
  if (plan.delay_us == 0) {
    struck.Set();
    SendSignal(getpid(), signal);
    return;
  }
  // Strikes somewhere in this call or in a later one.
  std::thread([&plan, &struck, signal] {
    std::this_thread::sleep_for(std::chrono::microseconds(plan.delay_us));
    struck.Set();
    SendSignal(getpid(), signal);
  }).detach();
}

// After an error every later call fails at once, with the first cause.
absl::Status CheckStaysFailed(Communicator& communicator,
                              const absl::Status& cause) {
  const int64_t start = NowNanos();
  const absl::Status later = communicator.Barrier();
  if (absl::Nanoseconds(NowNanos() - start) > kSoon / 2) {
    return absl::InternalError("a later call took long");
  }
  if (later.code() == absl::StatusCode::kFailedPrecondition &&
      absl::StrContains(later.message(), cause.message())) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("a later call gave: ", std::string(later.message())));
}

// What a rank gets. The time that it took is checked here.
absl::Status RunRank(Communicator& communicator, const Plan& plan,
                     SharedTime& struck) {
  const bool is_victim = communicator.rank() == plan.victim;
  LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
  for (int i = 0; i < kMaxCalls; ++i) {
    const CallPlan call = CallPlanOf(plan, i);
    absl::Status status;
    if (is_victim && i == plan.call && plan.fault != Fault::kDisagrees) {
      Signal(plan, struck);
    }
    if (is_victim && i == plan.call && plan.fault == Fault::kDisagrees) {
      struck.Set();
      status = MakeOther(communicator, call, plan.difference);
    } else {
      status = Make<float>(communicator, call);
    }
    if (status.ok()) continue;
    const absl::Duration took = struck.Since();
    const absl::Duration bound =
        plan.fault == Fault::kStopped ? kDeadline + kSoon : kSoon;
    if (took > bound) {
      return absl::InternalError(absl::StrCat("after ",
                                              absl::FormatDuration(took), ": ",
                                              std::string(status.message())));
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckStaysFailed(communicator, status));
    return status;
  }
  return absl::InternalError("nothing went wrong");
}

std::multiset<std::string> NamesIn(const std::string& folder) {
  std::multiset<std::string> names;
  DIR* stream = opendir(folder.c_str());
  while (const dirent* entry = readdir(stream)) names.insert(entry->d_name);
  closedir(stream);
  return names;
}

// All that a group could leave: files, shared memory, open files, processes.
std::vector<std::multiset<std::string>> Traces() {
  return {NamesIn("/dev/shm"), NamesIn(testing::TempDir()),
          NamesIn("/proc/self/fd")};
}

// What a rank must report.
testing::Matcher<const absl::Status&> IsCause(const Plan& plan) {
  using testing::AllOf;
  const std::string victim = absl::StrCat("rank ", plan.victim);
  const std::string site = " at .*fault_injection_test.cc:[0-9]+";
  switch (plan.fault) {
    case Fault::kKilled:
      return StatusIs(absl::StatusCode::kUnavailable,
                      AllOf(testing::StartsWith(victim + " (pid "),
                            testing::HasSubstr(") died")));
    case Fault::kStopped:
      return StatusIs(absl::StatusCode::kDeadlineExceeded,
                      AllOf(testing::StartsWith(victim + " (pid "),
                            testing::HasSubstr(") did not come within 1s")));
    case Fault::kDisagrees:
      break;
  }
  return StatusIs(
      absl::StatusCode::kInvalidArgument,
      AllOf(testing::StartsWith("ranks disagree on call "),
            testing::HasSubstr(victim + " called "),
            testing::ContainsRegex(absl::StrCat("rank [0-9].*", site,
                                                ", rank [0-9].*", site, "$"))));
}

class FaultInjectionTest
    : public testing::TestWithParam<std::tuple<Backend, int>> {};

TEST_P(FaultInjectionTest, EveryOtherRankReportsTheCauseAndNothingIsLeft) {
  RunRanksOptions options;
  options.group.timeout = kDeadline;
  options.deadline = absl::Seconds(20);
  const auto [backend, number] = GetParam();
  if (!IsBuilt(backend)) GTEST_SKIP() << "built without OpenSSL";
  const int lot = kRuns / kLots;
  for (int run = number * lot; run < (number + 1) * lot; ++run) {
    const Plan plan = PlanOf(static_cast<uint32_t>(run));
    SCOPED_TRACE(ToString(plan));
    const auto traces = Traces();
    SharedTime struck;
    const auto statuses = RunRanks(
        backend, plan.world_size,
        [&](Communicator& c) { return RunRank(c, plan, struck); }, options);
    for (int rank = 0; rank < plan.world_size; ++rank) {
      const bool reports =
          rank != plan.victim || plan.fault == Fault::kDisagrees;
      if (reports) {
        EXPECT_THAT(statuses[static_cast<size_t>(rank)], IsCause(plan))
            << "rank " << rank;
      }
    }
    EXPECT_EQ(Traces(), traces);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }
}

std::string NameOf(const testing::TestParamInfo<std::tuple<Backend, int>>& p) {
  return absl::StrCat(Name(std::get<0>(p.param)), std::get<1>(p.param));
}
INSTANTIATE_TEST_SUITE_P(
    Processes, FaultInjectionTest,
    testing::Combine(testing::Values(Backend::kProcesses),
                     testing::Range(0, IsExhaustive() ? kLots : 5)),
    NameOf);
INSTANTIATE_TEST_SUITE_P(
    Tcp, FaultInjectionTest,
    testing::Combine(testing::Values(Backend::kTcp),
                     testing::Range(0, IsExhaustive() ? kLots : 2)),
    NameOf);

// The controls: what the checks above must reject.

// What rank 0 gets where no fault is injected, but the last rank leaves, after
// a barrier if `late`: then the fault seems to have struck long ago.
absl::Status WhereTheLastRankLeaves(Plan& plan, int world_size, bool late) {
  plan = PlanOf(0);
  plan.world_size = world_size;
  plan.victim = 1;
  plan.call = kMaxCalls;  // Never.
  return RunRanks(Backend::kThreads, world_size,
                  [&](Communicator& communicator) {
                    if (communicator.rank() == world_size - 1) {
                      return late ? communicator.Barrier() : absl::OkStatus();
                    }
                    SharedTime struck;
                    if (!late) struck.Set();
                    return RunRank(communicator, plan, struck);
                  })[0];
}

TEST(FaultInjectionControlTest, AnotherCauseIsAnotherResult) {
  Plan plan;
  const absl::Status status =
      WhereTheLastRankLeaves(plan, /*world_size=*/3, /*late=*/false);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               testing::StartsWith("rank 2 left")));
  for (const Fault fault :
       {Fault::kKilled, Fault::kStopped, Fault::kDisagrees}) {
    plan.fault = fault;
    EXPECT_THAT(status, testing::Not(IsCause(plan)));
    EXPECT_THAT(absl::OkStatus(), testing::Not(IsCause(plan)));
  }
}

TEST(FaultInjectionControlTest, ALateReportShows) {
  Plan plan;
  EXPECT_THAT(
      WhereTheLastRankLeaves(plan, /*world_size=*/2, /*late=*/true),
      StatusIs(absl::StatusCode::kInternal, testing::StartsWith("after ")));
}

TEST(FaultInjectionControlTest, WhatIsLeftShows) {
  const auto before = Traces();
  const int file = memfd_create("left", MFD_CLOEXEC);
  EXPECT_NE(Traces(), before);
  close(file);
  const std::string path = testing::TempDir() + "/left";
  std::fclose(std::fopen(path.c_str(), "w"));
  EXPECT_NE(Traces(), before);
  unlink(path.c_str());
  EXPECT_EQ(Traces(), before);
}

}  // namespace
}  // namespace lockstep::conformance
