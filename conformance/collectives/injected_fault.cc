#include "conformance/collectives/injected_fault.h"

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
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_checker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {
namespace {

int64_t NowNanos() {
  return std::chrono::steady_clock::now().time_since_epoch() /
         std::chrono::nanoseconds(1);
}

// Checks that after an error every later call fails at once, with the first
// cause.
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

std::multiset<std::string> NamesIn(const std::string& folder) {
  std::multiset<std::string> names;
  DIR* stream = opendir(folder.c_str());
  while (const dirent* entry = readdir(stream)) {
    // Tests of the benchmarks may run at the same time and share the folder.
    if (!absl::StartsWith(entry->d_name, "mpi-ranks")) {
      names.insert(entry->d_name);
    }
  }
  closedir(stream);
  return names;
}

}  // namespace

FaultPlan PlanOf(uint32_t seed) {
  std::mt19937 random(seed);
  FaultPlan plan;
  plan.seed = seed;
  plan.world_size = 2 + static_cast<int>(random() % 4);
  plan.victim = static_cast<int>(random() % plan.world_size);
  plan.call = static_cast<int>(random() % 30);
  // One run in ten stops a rank, because the other ranks then wait for the
  // deadline.
  plan.fault = seed % 10 == 0  ? Fault::kStopped
               : seed % 2 == 0 ? Fault::kKilled
                               : Fault::kDisagrees;
  plan.delay_us = random() % 2 == 0 ? 0 : static_cast<int>(random() % 500);
  plan.difference = static_cast<int>(random() % 6);
  return plan;
}

std::string ToString(const FaultPlan& plan) {
  const char* const faults[] = {"killed", "stopped", "disagrees"};
  return absl::StrCat(
      "seed ", plan.seed, ": rank ", plan.victim, " of ", plan.world_size, " ",
      faults[static_cast<int>(plan.fault)], " at call ", plan.call);
}

SharedTime::SharedTime()
    : nanos_(new (mmap(nullptr, sizeof(*nanos_), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                 std::atomic<int64_t>(0)) {}

SharedTime::~SharedTime() { munmap(nanos_, sizeof(*nanos_)); }

void SharedTime::Set() { nanos_->store(NowNanos()); }

absl::Duration SharedTime::Since() const {
  return absl::Nanoseconds(NowNanos() - nanos_->load());
}

void Strike(const FaultPlan& plan, SharedTime& struck) {
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

absl::Status CheckReport(Communicator& communicator, const FaultPlan& plan,
                         const SharedTime& struck, const absl::Status& status) {
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

testing::Matcher<const absl::Status&> IsCause(const FaultPlan& plan,
                                              const std::string& files) {
  using testing::AllOf;
  const std::string victim = absl::StrCat("rank ", plan.victim);
  const std::string site = absl::StrCat(" at .*", files, ":[0-9]+");
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

std::vector<std::multiset<std::string>> Traces() {
  return {NamesIn("/dev/shm"), NamesIn(testing::TempDir()),
          NamesIn("/proc/self/fd")};
}

void ExpectReports(Backend backend, const FaultPlan& plan, const RunFaulty& run,
                   const testing::Matcher<const absl::Status&>& is_cause) {
  RunRanksOptions options;
  // Only a stopped rank is found by the timeout. Without one, a slow rank of a
  // busy machine could be taken for a stopped rank.
  if (plan.fault == Fault::kStopped) options.group.timeout = kDeadline;
  const auto traces = Traces();
  SharedTime struck;
  const auto statuses = RunRanks(
      backend, plan.world_size, [&](Communicator& c) { return run(c, struck); },
      options);
  for (int rank = 0; rank < plan.world_size; ++rank) {
    if (rank != plan.victim || plan.fault == Fault::kDisagrees) {
      EXPECT_THAT(statuses[static_cast<size_t>(rank)], is_cause)
          << "rank " << rank;
    }
  }
  EXPECT_EQ(Traces(), traces);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

absl::StatusOr<CallMemory> CallMemory::Create(Communicator& communicator,
                                              Memory memory) {
  CallMemory result;
  if (memory == Memory::kOrdinary) return result;
  // A call that disagrees may have one element more.
  result.largest_ = (kMaxCount + 1) * communicator.world_size();
  LOCKSTEP_ASSIGN_OR_RETURN(result.buffer_,
                            communicator.Allocate(kBuffers * result.largest_ *
                                                  int64_t{sizeof(float)}));
  return result;
}

}  // namespace lockstep::conformance
