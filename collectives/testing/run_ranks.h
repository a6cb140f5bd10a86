// For tests: runs a function on every rank of a new group of any backend. A
// base class for fake communicators.
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

// The backend of a test. kMixed is the `processes` backend, with two ranks as
// threads of each process. kTcp is over loopback, with a process for each rank.
enum class Backend { kThreads, kProcesses, kMixed, kTcp };

// Returns "Threads", "Processes", "Mixed" or "Tcp", for the names of
// parameterised tests.
const char* Name(Backend backend);

// Returns whether this binary was built with the libraries of the backend, for
// kTcp OpenSSL.
bool IsBuilt(Backend backend);

// Returns a time that only ranks that hang exceed: four fifths of the time that
// Bazel gives the running test (TEST_TIMEOUT), so that the test can still say
// which ranks hang. It is at least 1 minute and at most 10. Outside Bazel it is
// 10 minutes.
absl::Duration HangDeadline();

struct RunRanksOptions {
  GroupOptions group;
  // The limit for the whole run. A process that still runs is then killed and
  // reported. A thread cannot be killed, so the test process ends with a
  // message.
  absl::Duration deadline = HangDeadline();
};

// Calls `fn` once on each of `world_size` ranks, at the same time. Returns the
// results in rank order. Each rank leaves the group when its `fn` returns.
//
// With kThreads, ranks are threads of this process. Otherwise ranks are in
// forked children. The memory that `fn` writes is then lost, including test
// assertions: return results. The caller must have no other thread at that
// moment.
//
// Errors in place of fn's status: the error of joining the group; kAborted for
// a process that ended without a result, naming the signal; kDeadlineExceeded
// for a process that outlived the deadline. A stopped process is killed once
// all others are done.
std::vector<absl::Status> RunRanks(
    Backend backend, int world_size,
    const std::function<absl::Status(Communicator&)>& fn,
    const RunRanksOptions& options = {});

// Runs `fn` in the same way and returns each rank's bytes.
std::vector<absl::StatusOr<std::string>> RunRanksCollect(
    Backend backend, int world_size,
    const std::function<absl::StatusOr<std::string>(Communicator&)>& fn,
    const RunRanksOptions& options = {});

// Converts the result of a rank that is a process to bytes, and back.
std::string SerializeResult(const absl::StatusOr<std::string>& result);
absl::StatusOr<std::string> ParseResult(absl::string_view bytes);

// A base for fake communicators: rank 0 of 1 unless overridden. The test
// implements Run.
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
