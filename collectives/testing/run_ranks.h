// For tests: a function that runs on every rank of a new group of any backend,
// and groups that are made up.
#ifndef LOCKSTEP_COLLECTIVES_TESTING_RUN_RANKS_H_
#define LOCKSTEP_COLLECTIVES_TESTING_RUN_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// kMixed: the `processes` backend, with two ranks as threads of each process.
// kTcp: over loopback, a process for each rank.
enum class Backend { kThreads, kProcesses, kMixed, kTcp };

// "Threads", "Processes", "Mixed", "Tcp": for the names of parameterised tests.
const char* Name(Backend backend);

// Whether this was built with what it needs, for kTcp OpenSSL.
bool IsBuilt(Backend backend);

struct RunRanksOptions {
  GroupOptions group;
  // For the whole run. Processes that are still there are then killed and
  // reported; a thread cannot be, so the test process ends with a message.
  absl::Duration deadline = absl::Seconds(60);
};

// Calls `fn` once on each of `world_size` ranks, at the same time, and returns
// what each returned, in rank order. Each rank leaves the group as its `fn`
// returns.
//
// kThreads: ranks are threads of this process. Else ranks are in forked
// children, so what `fn` writes to memory, its test assertions included, is
// lost: return it. The caller must have no other thread at that moment.
//
// Instead of fn's status: that of joining the group, if it failed; kAborted for
// a process that ended without a result, naming the signal;
// kDeadlineExceeded for one that outlived the deadline. A stopped process is
// killed once all the others are done.
std::vector<absl::Status> RunRanks(
    Backend backend, int world_size,
    const std::function<absl::Status(Communicator&)>& fn,
    const RunRanksOptions& options = {});

// The same, and hands each rank's bytes to the caller.
std::vector<absl::StatusOr<std::string>> RunRanksCollect(
    Backend backend, int world_size,
    const std::function<absl::StatusOr<std::string>(Communicator&)>& fn,
    const RunRanksOptions& options = {});

// What a rank returned as bytes, for those that are processes; and back.
std::string SerializeResult(const absl::StatusOr<std::string>& result);
absl::StatusOr<std::string> ParseResult(absl::string_view bytes);

// A base for communicators that tests make up: rank 0 of 1 unless overridden;
// what runs a call is the test's.
class FakeCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  absl::StatusOr<GroupBuffer> Allocate(int64_t, CallSite) override {
    return absl::UnimplementedError("a fake allocates nothing");
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int, int,
                                                      CallSite) override {
    return absl::UnimplementedError("a fake does not split");
  }
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TESTING_RUN_RANKS_H_
