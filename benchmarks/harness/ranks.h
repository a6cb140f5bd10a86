// The ranks of a benchmark, which run the benchmark's own program; and the
// processes of one team, as the benchmark's driver sees them.
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
  kTcp,  // Processes on several hosts.
  kThreads,
  kMpi,
  kApart,  // Processes that run side by side and share nothing.
  kDdp,    // PyTorch's DistributedDataParallel; not for RunAsRanks.
};

const char* Name(RankKind kind);

// Calls `body` as a rank of a group. If ranks are processes, this process is
// one rank that the launcher has started. If ranks are MPI's, it is a rank of
// an MPI job; the program must be linked with //collectives/mpi:mpi_group. If
// ranks are threads, each of `world_size` ranks gets a thread. Errors:
// kFailedPrecondition without a launcher; the group's; the first of `body`.
absl::Status RunAsRanks(RankKind kind, int world_size,
                        const GroupOptions& options,
                        const std::function<absl::Status(Communicator&)>& body);

// The command that starts a team's processes.
struct TeamCommand {
  std::vector<std::string> argv;
  int nproc = 1;  // The number of copies; 1 if the program starts ranks.
  bool bind_cores = false;  // Binds each copy to cores of its own.
  // The variables that are set for the processes, by name and value.
  std::vector<std::pair<std::string, std::string>> environment = {};
  // The number of ranks that will connect, from however many processes. Each
  // rank must find this world size.
  int world_size = 1;
  // If not -1, only this rank connects; the other ranks connect elsewhere.
  int only_rank = -1;
};

// Returns the beginning of a command by which Open MPI's mpirun starts ranks;
// the caller adds the program. cores: the number that the ranks may use.
// folder: where Open MPI keeps all its files and the memory that its ranks
// share; empty: its default.
TeamCommand MpirunCommand(int world_size, int cores, const std::string& folder);

// Creates a folder for MpirunCommand with enough room for the ranks' shared
// files. It lies in the folder that OMPI_MCA_btl_vader_backing_directory names.
// Without that variable it lies in /dev/shm, or if that is too small, in TMPDIR
// or /tmp. Error: kUnavailable, with the free room. Without enough room ranks
// end by SIGBUS or hang.
absl::StatusOr<TemporaryFolder> CreateMpiFolder(int world_size);

// Does the same in the first of `folders` that has room for `bytes`.
absl::StatusOr<TemporaryFolder> CreateFolderWithRoom(
    const std::vector<std::string>& folders, int64_t bytes);

// The place of a rank of a launched run.
struct RankHost {
  std::string node = {};  // The same for all ranks of a host.
  std::string name = {};  // The host's name.
  int32_t pid = 0;
  std::vector<int32_t> cpus = {};  // The affinity.
  int32_t cores = 1;               // UsableCores() of this rank.

  static auto Members(auto& self) {
    return std::tie(self.node, self.name, self.pid, self.cpus, self.cores);
  }
};

// Returns the hosts of the ranks. `ranks` is indexed by rank.
std::vector<report::Host> HostsOf(const std::vector<RankHost>& ranks);

class RankTeam;

// A rank of a launcher's run that starts its benchmark's ranks itself, on one
// host or several. Rank 0 is the driver. Every rank starts its part of the
// driver's teams, one process each, on its own host. Not thread safe.
class LaunchedRun {
 public:
  // Joins the run. Returns null if no launcher started this process. While the
  // driver's object lives, RankTeam::Start starts teams of the run's first
  // ranks. Errors: ReadRankEnvironment's; JoinLaunchedGroup's; kInvalidArgument
  // if the ranks meet at a port, even on loopback, and LOCKSTEP_TOKEN is not
  // set.
  static absl::StatusOr<std::unique_ptr<LaunchedRun>> Join();

  LaunchedRun(const LaunchedRun&) = delete;
  LaunchedRun& operator=(const LaunchedRun&) = delete;
  // On the driver, ends the run for the other ranks.
  ~LaunchedRun();

  bool is_driver() const { return group_->rank() == 0; }
  int world_size() const { return group_->world_size(); }
  // The hosts, in the order of their first ranks.
  const std::vector<report::Host>& hosts() const { return hosts_; }
  // Returns the number of cores that the ranks may use on all hosts. If the
  // launcher bound the ranks, these are the cores of all ranks together.
  int cores() const;
  // The processes of this host's ranks.
  const std::vector<pid_t>& processes() const { return processes_; }

  // Follows the driver's orders until the driver ends the run. Called by all
  // other ranks. Errors: the group's, as when the driver has died.
  absl::Status Serve();

 private:
  friend class RankTeam;

  enum class Order : int32_t { kStart, kAwait, kAsk, kStop, kEnd };
  struct Request {
    Order order = Order::kEnd;
    int64_t team = 0;
    double seconds = 0;        // The time limit.
    std::string message = {};  // The message of kAsk.
    // The rest is for kStart.
    int32_t world_size = 0;
    int32_t port = 0;         // A free port of the driver's host.
    std::string folder = {};  // The folder of the driver's program.
    std::string file = {};    // Where ranks of one host meet.
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

  // Called by the driver: has all ranks obey the request. Returns the answers
  // of all ranks, by rank, or the error that explains the other errors.
  absl::StatusOr<std::vector<std::string>> Command(const Request& request);
  absl::StatusOr<std::string> HandleRequest(const Request& request);
  absl::Status StartHere(const Request& request);

  std::unique_ptr<Communicator> group_;
  std::vector<std::string> nodes_;  // By rank; equal on one host.
  std::vector<report::Host> hosts_;
  std::vector<pid_t> processes_;
  int64_t teams_begun_ = 0;
  std::map<int64_t, std::unique_ptr<RankTeam>> teams_;
};

// Resolves how the ranks of `backends` exchange data: on several hosts
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

// Adds the hosts of a launched run to the origin. `launched` may be null.
void DescribeHosts(const LaunchedRun* launched, report::Origin& origin);

// A team of processes. Once started, it runs until Stop or destruction. However
// this process ends, the team's processes end soon after it. The team's output
// goes to no terminal; errors quote its last line. Not thread safe.
class RankTeam {
 public:
  // Starts the processes. `command` gets the name of the listener to connect
  // to. This process must have one thread. In the driver of a LaunchedRun the
  // run's ranks start the processes. Errors: the system's; kInvalidArgument if
  // a launched run cannot have the team, because it has more ranks than the run
  // or several ranks per process.
  static absl::StatusOr<std::unique_ptr<RankTeam>> Start(
      const std::function<TeamCommand(const std::string& listener)>& command);

  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;
  ~RankTeam();

  // Waits until every rank has connected. Errors: kFailedPrecondition if a
  // rank's world size is not the command's, or a rank is missing or there
  // twice; kUnavailable if the processes have ended; kDeadlineExceeded.
  absl::Status AwaitRanks(absl::Duration timeout);

  // Sends every rank the message, and returns their answers, by rank
  // (rank_service.h). Errors: a rank's, with its number; kUnavailable if a rank
  // has ended; kDeadlineExceeded. No message may follow an error.
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view message,
                                                    absl::Duration timeout);

  // The same with the types of Encode: returns the answers of
  // ServeTurns<Request>. Further error: kDataLoss for a message that is not an
  // Answer.
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

  // Tells the ranks to end, and waits until they have ended. Kills them at the
  // deadline. Error: kAborted if they failed or were killed.
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

  // Sends an order to the launched team `team_`.
  absl::StatusOr<std::vector<std::string>> SendOrder(LaunchedRun::Order order,
                                                     absl::string_view message,
                                                     absl::Duration timeout);

  absl::Status Launch();
  absl::Status AcceptRank(const Deadline& deadline);
  absl::Status ReapAndDescribeEnd();
  bool AwaitEnd(absl::Duration timeout);
  std::string LastLine() const;            // Of the output; may be empty.
  std::string DescribeLastOutput() const;  // For ended processes; never empty.

  LaunchedRun* const run_ = nullptr;  // Null if all processes are on this host.
  int64_t team_ = 0;
  bool ended_ = false;
  OwnedFd meeting_[2];  // A launched team's file and port.

  const TeamCommand command_;
  TurnListener listener_;
  OwnedFd log_;
  OwnedFd process_;  // A pidfd of pid_.
  pid_t pid_ = -1;   // The launching process; -1 after it was reaped.
  int wait_status_ = 0;
  std::vector<TurnChannel> ranks_;  // By rank.
  std::vector<bool> connected_;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_RANKS_H_
