// The ranks of a benchmark, which are its own program again; and the processes
// of one team, as the driver of the benchmark sees them.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_RANKS_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_RANKS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
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
#include "report/document.h"

namespace lockstep::benchmarks {

enum class RankKind : int32_t {
  kProcesses,
  kTcp,  // The same on several hosts.
  kThreads,
  kMpi,
  kApart,  // Processes that work side by side and share nothing.
  kDdp,    // Of PyTorch's DistributedDataParallel: not for RunAsRanks.
};

const char* Name(RankKind kind);

// Calls `body` as a rank of a group: of this one if ranks are processes, which
// the launcher then has started, or of an MPI job, in programs that are linked
// with //collectives/mpi:mpi_group; in a thread for each of `world_size` ranks
// if they are threads. Errors: kFailedPrecondition without a launcher; the
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
  // If not -1, only this one of them connects: the others do so elsewhere.
  int only_rank = -1;
};

// The beginning of a command by which Open MPI's mpirun starts ranks; the
// program is to be added. cores: that the ranks may use. folder: where Open MPI
// keeps all its files, the memory that its ranks share among them; empty: where
// it does by default.
TeamCommand MpirunCommand(int world_size, int cores, const std::string& folder);

// Such a folder, with room for what the ranks share: in the folder that
// OMPI_MCA_btl_vader_backing_directory names, else in /dev/shm or, where that
// is small, in TMPDIR or /tmp. Error: kUnavailable, with the room that there
// is. Ranks without that room end by SIGBUS or wait for each other.
absl::StatusOr<TemporaryFolder> CreateMpiFolder(int world_size);

// The same in the first of `folders` that has room for `bytes`.
absl::StatusOr<TemporaryFolder> CreateFolderWithRoom(
    const std::vector<std::string>& folders, int64_t bytes);

// Where a rank of a launched run is.
struct RankHost {
  std::string node = {};  // The same for all ranks of a host.
  std::string name = {};  // The host's.
  int32_t pid = 0;
  std::vector<int32_t> cpus = {};  // Its affinity.
  int32_t cores = 1;               // UsableCores() of the rank alone.

  static auto Members(auto& self) {
    return std::tie(self.node, self.name, self.pid, self.cpus, self.cores);
  }
};

// The hosts of the ranks, which are given by rank.
std::vector<report::Host> HostsOf(const std::vector<RankHost>& ranks);

class RankTeam;

// A command that starts its ranks itself, as a rank of a launcher's run, on one
// host or several: rank 0 is its driver, and every rank starts its part of the
// driver's teams, a process each, on its own host. Not thread safe.
class LaunchedRun {
 public:
  // Joins the run; null if no launcher started this process. While the driver's
  // object lives RankTeam::Start starts teams of the run's first ranks. Errors:
  // ReadRankEnvironment's; JoinLaunchedGroup's; kInvalidArgument if the ranks
  // meet at a port, even on loopback, and LOCKSTEP_TOKEN is not set.
  static absl::StatusOr<std::unique_ptr<LaunchedRun>> Join();

  LaunchedRun(const LaunchedRun&) = delete;
  LaunchedRun& operator=(const LaunchedRun&) = delete;
  // The driver's ends the run for the others.
  ~LaunchedRun();

  bool is_driver() const { return group_->rank() == 0; }
  int world_size() const { return group_->world_size(); }
  // In the order of their first ranks.
  const std::vector<report::Host>& hosts() const { return hosts_; }
  // That the ranks may use on all hosts: of ranks that their launcher bound,
  // the cores of all.
  int cores() const;
  // The processes of this host's ranks.
  const std::vector<pid_t>& processes() const { return processes_; }

  // Of the other ranks: does what the driver asks for, until that ends. Errors:
  // the group's, as when the driver has died.
  absl::Status Serve();

 private:
  friend class RankTeam;

  enum class Order : int32_t { kStart, kAwait, kAsk, kStop, kEnd };
  struct Request {
    Order order = Order::kEnd;
    int64_t team = 0;
    double seconds = 0;        // At most.
    std::string message = {};  // Of kAsk.
    // Of kStart.
    int32_t world_size = 0;
    int32_t port = 0;         // Free, of the driver's host.
    std::string folder = {};  // Of the driver's program.
    std::string file = {};    // For ranks of one host to meet in.
    std::vector<std::string> argv = {};
    std::vector<std::string> environment = {};  // "NAME=value".

    static auto Members(auto& self) {
      return std::tie(self.order, self.team, self.seconds, self.message,
                      self.world_size, self.port, self.folder, self.file,
                      self.argv, self.environment);
    }
  };
  explicit LaunchedRun(std::unique_ptr<Communicator> group);
  absl::Status Meet();

  // Of the driver: has all ranks do it; returns their answers, by rank, of the
  // team's first ranks, or the error that explains the others.
  absl::StatusOr<std::vector<std::string>> Command(const Request& request);
  absl::StatusOr<std::string> Obey(const Request& request);
  absl::Status StartHere(const Request& request);

  std::unique_ptr<Communicator> group_;
  std::vector<std::string> nodes_;  // By rank: the same on one host.
  std::vector<report::Host> hosts_;
  std::vector<pid_t> processes_;
  int64_t teams_begun_ = 0;
  std::map<int64_t, std::unique_ptr<RankTeam>> teams_;
};

// Names what the ranks of `backends` exchange data by: on several hosts
// `processes` becomes `tcp`. `launched` may be null. Error: kInvalidArgument
// for `tcp` on one host.
template <typename Kind>
absl::Status ResolveTcp(const LaunchedRun* launched,
                        std::vector<Kind>& backends) {
  const bool several = launched != nullptr && launched->hosts().size() > 1;
  for (Kind& backend : backends) {
    if (several && backend == Kind::kProcesses) backend = Kind::kTcp;
    if (!several && backend == Kind::kTcp) {
      return absl::InvalidArgumentError(
          "--backend=tcp needs ranks on several hosts: start them with "
          "//collectives:launch --nnodes=N");
    }
  }
  return absl::OkStatus();
}

// Completes where the numbers of a launched run are from. `launched` may be
// null.
void DescribeHosts(const LaunchedRun* launched, report::Origin& origin);

// Started, it runs until Stop or destruction; however this process ends, none
// of the team's outlives it for long. The team's output goes to no terminal:
// errors quote its last line. Not thread safe.
class RankTeam {
 public:
  // Starts the processes; `command` is told the name of the listener to connect
  // to. For single-threaded processes. In the driver of a LaunchedRun the ranks
  // of the run start them. Errors: the system's; kInvalidArgument for a team
  // that a launched run cannot have: of more ranks, or of several to a process.
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
  friend class LaunchedRun;

  static absl::StatusOr<std::unique_ptr<RankTeam>> StartHere(
      const std::function<TeamCommand(const std::string& listener)>& command);
  static absl::StatusOr<std::unique_ptr<RankTeam>> StartLaunched(
      LaunchedRun& run,
      const std::function<TeamCommand(const std::string& listener)>& command);

  explicit RankTeam(LaunchedRun& run) : run_(&run) {}
  RankTeam(TeamCommand command, TurnListener listener, OwnedFd log)
      : command_(std::move(command)),
        listener_(std::move(listener)),
        log_(std::move(log)) {}

  // Of a launched team, whose number is `team_`.
  absl::StatusOr<std::vector<std::string>> AskRun(LaunchedRun::Order order,
                                                  absl::string_view message,
                                                  absl::Duration timeout);

  absl::Status Launch();
  absl::Status AcceptRank(const Deadline& deadline);
  absl::Status EndedEarly();
  bool AwaitEnd(absl::Duration timeout);
  std::string LastLine() const;   // Of the output; empty if there is none.
  std::string LastWords() const;  // The same of ended processes, never empty.

  LaunchedRun* const run_ = nullptr;  // Null: the processes are all here.
  int64_t team_ = 0;
  bool ended_ = false;
  OwnedFd meeting_[2];  // A launched team's file and port, until it ends.

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
