// The ranks of a benchmark, which are its own program again; and the processes
// of one team, as the driver of the benchmark sees them.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_RANKS_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_RANKS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {

enum class RankKind : int32_t { kProcesses, kThreads };

const char* Name(RankKind kind);

// Calls `body` as a rank of a group: of this one if ranks are processes, which
// the launcher then has started; in a thread for each of `world_size` ranks if
// they are threads. Errors: kFailedPrecondition without a launcher; the
// group's; the first of `body`.
absl::Status RunAsRanks(RankKind kind, int world_size,
                        const GroupOptions& options,
                        const std::function<absl::Status(Communicator&)>& body);

// How a team's processes are started.
struct TeamCommand {
  std::vector<std::string> argv;
  int nproc = 1;  // Copies of it; 1 for a program that starts ranks itself.
  bool bind_cores = false;  // Each copy to cores of its own.
  // Variables that are set for them, by name.
  std::vector<std::pair<std::string, std::string>> environment = {};
  // Ranks that will connect, in however many processes, each of which must find
  // as many.
  int world_size = 1;
};

// Started, it runs until Stop or destruction; however this process ends, none
// of the team's outlives it for long. The team's output goes to no terminal:
// errors quote its last line. Not thread safe.
class RankTeam {
 public:
  // Starts the processes; `command` is told the name of the listener to connect
  // to. For single-threaded processes. Errors: the system's.
  static absl::StatusOr<std::unique_ptr<RankTeam>> Start(
      const std::function<TeamCommand(const std::string& listener)>& command);

  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;
  ~RankTeam();

  // Waits until every rank has connected. Errors: kFailedPrecondition if a
  // rank's world size is not the command's or a rank is missing or there twice;
  // kUnavailable if the processes have ended, kDeadlineExceeded.
  absl::Status AwaitRanks(absl::Duration timeout);

  // Sends every rank the message, and returns their answers, by rank
  // (rank_service.h). Errors: a rank's, with its number; kUnavailable if one
  // has ended; kDeadlineExceeded. No message may follow an error.
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view message,
                                                    absl::Duration timeout);

  // The same with the types of Encode: what ServeTurns<Request> answers.
  // Error also: kDataLoss for what is no Answer.
  template <typename Answer, typename Request>
  absl::StatusOr<std::vector<Answer>> Ask(const Request& request,
                                          absl::Duration timeout) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> messages,
                              Exchange(Encode(request), timeout));
    std::vector<Answer> answers;
    for (const std::string& message : messages) {
      LOCKSTEP_ASSIGN_OR_RETURN(Answer answer, Decode<Answer>(message));
      answers.push_back(std::move(answer));
    }
    return answers;
  }

  // Tells the ranks to end, and waits for that; kills them at the deadline.
  // Error: kAborted if they did not end well.
  absl::Status Stop(absl::Duration timeout);

 private:
  RankTeam(TeamCommand command, TurnListener listener, OwnedFd log)
      : command_(std::move(command)),
        listener_(std::move(listener)),
        log_(std::move(log)) {}

  absl::Status Launch();
  absl::Status AcceptRank(const Deadline& deadline);
  absl::Status EndedEarly();
  bool AwaitEnd(absl::Duration timeout);
  std::string LastLine() const;

  const TeamCommand command_;
  TurnListener listener_;
  OwnedFd log_;
  OwnedFd process_;  // A pidfd of pid_.
  pid_t pid_ = -1;   // The process that launches and supervises; -1: reaped.
  int wait_status_ = 0;
  std::vector<TurnChannel> ranks_;  // By rank.
  std::vector<bool> connected_;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_RANKS_H_
