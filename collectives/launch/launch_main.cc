// The command `launch`: starts N ranks of any program on this host. With one
// launcher on each of several nodes, all of their ranks form one run.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/deadline.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/groups/create_group.h"
#include "collectives/groups/rendezvous_location.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/launcher.h"
#include "collectives/launch/node_group.h"
#include "collectives/launch/rank_placement.h"

ABSL_FLAG(std::string, nproc, "cpu",
          "ranks to start, 1 to 4096, or:\n"
          "cpu   one for each core, the default\n"
          "gpu   one for each GPU in CUDA_VISIBLE_DEVICES, or of this host\n"
          "auto  gpu if there are GPUs, else cpu");
ABSL_FLAG(std::string, log_dir, "",
          "also write everything that rank R prints to DIR/rank-R.log, without "
          "\"[R] \"; makes DIR, overwrites earlier logs");
ABSL_FLAG(bool, prefix_output, true,
          "pass on the ranks' output as it comes; by default each line of rank "
          "1 starts with \"[1] \"");
ABSL_FLAG(bool, bind_cores, false,
          "bind each rank to cores of its own, an equal part of those that "
          "this program may use, and print them; ranks take turns if there are "
          "too few. Off by default, since two runs at once would be bound to "
          "the same cores");
ABSL_FLAG(int, gpus_per_rank, 0,
          "show each rank N of the GPUs in CUDA_VISIBLE_DEVICES, or of this "
          "host's if that is not set, as numbers 0 to N-1. By default, 0, "
          "every rank sees all GPUs and takes GPU LOCAL_RANK");
ABSL_FLAG(bool, share_gpus, false,
          "let ranks take turns on the GPUs if there are too few");
ABSL_FLAG(absl::Duration, timeout, absl::InfiniteDuration(),
          "stop the ranks that still run after TIME: 90s, 1h30m. The time "
          "includes the wait for other nodes, which takes 10m at most");
ABSL_FLAG(int, nnodes, 1, "nodes of the run, each with a launcher");
ABSL_FLAG(int, node_rank, 0, "the number of this node, 0 to nnodes-1");
ABSL_FLAG(std::string, rdzv_endpoint, "",
          "HOST:PORT: an address of node 0, and a free port there, where the "
          "launchers meet; the same for all nodes");
ABSL_FLAG(std::string, master_addr, "", "HOST of --rdzv_endpoint");
ABSL_FLAG(int, master_port, 29400, "PORT of --rdzv_endpoint");
ABSL_FLAG(bool, no_python, false,
          "not needed: COMMAND is any program, as without this flag");
ABSL_FLAG(bool, standalone, false, "a run of one node, as without this flag");
ABSL_FLAG(std::string, rdzv_backend, "c10d",
          "c10d or static, which mean the same; etcd is not supported");
ABSL_FLAG(std::string, rdzv_id, "",
          "not needed: LOCKSTEP_TOKEN tells one run from another");
ABSL_FLAG(int, max_restarts, 0,
          "0, since a run that fails is not started again");

namespace lockstep {
namespace {

constexpr char kName[] = "launch";
// Limited because every two launchers have a connection.
constexpr int kMostNodes = 256;
// A long time, because a job may get its nodes one after the other.
constexpr absl::Duration kMeetTimeout = absl::Minutes(10);
// The exit status of timeout(1) when the time is up.
constexpr int kTimedOut = 124;
// Replaces a remaining time of 0, which Launch() rejects.
constexpr absl::Duration kShortest = absl::Milliseconds(1);

Usage LaunchUsage() {
  return {
      .command = kName,
      .introduction = R"(launch [FLAGS] [--] COMMAND ARGS...

Starts N ranks (processes) of COMMAND on this host and waits for them. On
several hosts, start a launcher on each: they share out the ranks.

  launch --nproc=2 -- ./train --epochs=1
  launch --nproc=4 --log_dir=logs -- python3 train.py
  launch --nproc=8 --gpus_per_rank=1 --bind_cores -- ./train
  bazel run //collectives:launch -- --nproc=2 -- sh -c 'echo rank $RANK'
  launch --nnodes=2 --node_rank=0 --rdzv_endpoint=host0:29400 -- ./train
  launch --nnodes=2 --node_rank=1 --rdzv_endpoint=host0:29400 -- ./train
)",
      .sections =
          {{"Flags:",
            "nproc=N log_dir=DIR noprefix_output bind_cores "
            "gpus_per_rank=N share_gpus timeout=TIME help"},
           {"On several nodes:",
            "nnodes=1 node_rank=0 rdzv_endpoint=HOST:PORT "
            "master_addr=HOST master_port"},
           {"For commands written for torchrun:",
            "no_python standalone rdzv_backend rdzv_id=ID max_restarts"}},
      .ending =
          R"(torchrun's spellings, --nproc-per-node, --node-rank and the like, do too.
Off loopback the launchers, and ranks that form a group, need a token, by which
they know each other: export LOCKSTEP_TOKEN=$(openssl rand -hex 32), the same
on every node.

Each rank finds in its environment, as under torchrun:
  RANK, WORLD_SIZE               of the whole run: 0 to WORLD_SIZE-1
  LOCAL_RANK, LOCAL_WORLD_SIZE   of this node: 0 to N-1, and N
  GROUP_RANK, GROUP_WORLD_SIZE   of the node: node_rank, nnodes
  MASTER_ADDR, MASTER_PORT       127.0.0.1, or node 0's host, and a free port
                                 there, for rank 0 to use
  OMP_NUM_THREADS                unless it is set already: 1, or its number of
                                 cores with --bind_cores
and besides:
  LOCKSTEP_RENDEZVOUS            on one node, a file through which ranks find
                                 each other
  CUDA_VISIBLE_DEVICES           its GPUs, with --gpus_per_rank
Its standard input is empty.

SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 are passed on to the
ranks; a second SIGINT kills them. When one rank fails the others are stopped,
and the last lines of standard error say which rank was first, how it ended,
when, and how the others ended. They also name its node, on every node. No
process that a rank has started is left behind.

Exit status: 0 if every rank exits with 0; else that of the first rank to fail,
or 128 + N if signal N killed it. 124: the time was up. 2: wrong usage. 126:
COMMAND cannot be run. 127: COMMAND not found. 1: anything else that keeps the
ranks from running.
)",
      .aliases = {{"world_size", "nproc"}, {"nproc_per_node", "nproc"}}};
}

int ExitStatusOf(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kNotFound:
      return 127;
    case absl::StatusCode::kPermissionDenied:
      return 126;
    case absl::StatusCode::kInvalidArgument:
      return kUsageError;
    default:
      return kFailure;
  }
}

// Returns the ranks' placement, after printing which cores they are bound to.
absl::StatusOr<std::vector<RankPlacement>> Place(int nproc, int first_rank) {
  absl::StatusOr<std::vector<RankPlacement>> placements =
      PlaceRanks(nproc, {.gpus_per_rank = absl::GetFlag(FLAGS_gpus_per_rank),
                         .share_gpus = absl::GetFlag(FLAGS_share_gpus),
                         .bind_cores = absl::GetFlag(FLAGS_bind_cores)});
  if (!placements.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", placements.status().message()));
  }
  const std::string binding = FormatBinding(*placements, first_rank);
  if (!binding.empty()) std::fprintf(stderr, "%s\n", binding.c_str());
  return placements;
}

// Tells the other nodes how the run ended here, and waits for them. Returns the
// failure that came first, if that was another node's.
std::optional<NodeFailure> FinishNodes(
    NodeGroup& nodes, const absl::StatusOr<LaunchSummary>& summary) {
  if (!summary.ok()) {
    nodes.Fail(ExitStatusOf(summary.status()), summary.status().message());
  } else if (FirstFailure(*summary).has_value() ||
             summary->timed_out.has_value() || summary->received_signal != 0) {
    nodes.Fail(ExitStatus(*summary), DescribeFailure(*summary));
  }
  std::optional<NodeFailure> first = nodes.AwaitEnd();
  if (first.has_value() && first->node == nodes.place().node) first.reset();
  return first;
}

// Prints on standard error how the run ended; returns the exit status.
int Report(const LaunchSummary& summary,
           const std::optional<NodeFailure>& elsewhere) {
  if (!summary.log_error.empty()) {
    std::fprintf(stderr, "launch: %s; the log is not complete\n",
                 summary.log_error.c_str());
  }
  const std::string text =
      FormatSummary(summary, elsewhere.has_value() ? elsewhere->text : "");
  if (!text.empty()) std::fprintf(stderr, "%s\n", text.c_str());
  return elsewhere.has_value() ? elsewhere->exit_status : ExitStatus(summary);
}

// Returns the place where the launchers meet, from the flags.
absl::StatusOr<RendezvousLocation> RendezvousLocationFromFlags() {
  const auto variable = [](const char* name) -> std::string {
    return LookUpProcessEnvironment(name).value_or("");
  };
  RendezvousLocation place;
  place.listen_address = variable("LOCKSTEP_LISTEN_ADDRESS");
  place.token = variable("LOCKSTEP_TOKEN");
  place.port = absl::GetFlag(FLAGS_master_port);
  place.address = absl::GetFlag(FLAGS_master_addr);
  const std::string endpoint = absl::GetFlag(FLAGS_rdzv_endpoint);
  if (!endpoint.empty()) {
    absl::string_view host = endpoint;
    const size_t colon = host.rfind(':');
    if (colon == host.npos ||
        !absl::SimpleAtoi(host.substr(colon + 1), &place.port)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rdzv_endpoint=", endpoint, " is not HOST:PORT"));
    }
    host = host.substr(0, colon);
    if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
    place.address = std::string(host);
  }
  if (place.address.empty()) {
    return absl::InvalidArgumentError(
        "--nnodes: several need --rdzv_endpoint=HOST:PORT, where node 0 can be "
        "reached");
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange(endpoint.empty() ? "--master_port" : "--rdzv_endpoint",
                 place.port, 1, 65535));
  return place;
}

void Tell(const std::string& line) {
  std::fprintf(stderr, "lockstep: %s\n", line.c_str());
}

// Returns the group of launchers once all have met; null if this node is the
// only one.
absl::StatusOr<std::unique_ptr<NodeGroup>> JoinNodes(int nproc) {
  const int nodes = absl::GetFlag(FLAGS_nnodes);
  if (nodes == 1) return nullptr;
  LOCKSTEP_ASSIGN_OR_RETURN(const RendezvousLocation place,
                            RendezvousLocationFromFlags());
  absl::StatusOr<std::unique_ptr<NodeGroup>> group = NodeGroup::Join(
      place, absl::GetFlag(FLAGS_node_rank), nodes, nproc,
      {.timeout = std::min(kMeetTimeout, absl::GetFlag(FLAGS_timeout)),
       .tell = Tell});
  if (!group.ok()) {
    return absl::Status(
        group.status().code(),
        absl::StrCat("the launchers cannot meet: ", group.status().message()));
  }
  Tell(absl::StrCat("all ", nodes, " nodes have joined"));
  return group;
}

// Returns the number of ranks that --nproc=text asks for.
absl::StatusOr<int> ParseRanks(const std::string& text) {
  if (text == "gpu" || text == "auto") {
    const absl::StatusOr<int> gpus = CountVisibleGpus();
    if (!gpus.ok()) return FlagError("nproc", text, gpus.status().message());
    if (*gpus > 0) return gpus;
    if (text == "gpu") {
      return FlagError("nproc", text, "there is no GPU; write cpu or a number");
    }
  }
  if (text == "cpu" || text == "auto") return UsableCores();
  int nproc = 0;
  if (!absl::SimpleAtoi(text, &nproc)) {
    return FlagError("nproc", text, "not a number, cpu, gpu or auto");
  }
  return nproc;
}

absl::StatusOr<int> RanksFromFlag() {
  LOCKSTEP_ASSIGN_OR_RETURN(const int nproc,
                            ParseRanks(absl::GetFlag(FLAGS_nproc)));
  if (nproc < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nproc=", nproc, " is less than 1"));
  }
  if (nproc > kMostRanksOnHost) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nproc=", nproc, " is more than ", kMostRanksOnHost));
  }
  return nproc;
}

// Checks torchrun's flags that have no effect here.
absl::Status CheckTorchrunFlags() {
  const int nodes = absl::GetFlag(FLAGS_nnodes);
  if (absl::GetFlag(FLAGS_standalone) && nodes != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--standalone is one node, but --nnodes is ", nodes));
  }
  const std::string backend = absl::GetFlag(FLAGS_rdzv_backend);
  if (backend != "c10d" && backend != "static") {
    return FlagError("rdzv_backend", backend,
                     "not supported; write c10d, and --rdzv_endpoint=HOST:PORT "
                     "of node 0");
  }
  const int restarts = absl::GetFlag(FLAGS_max_restarts);
  if (restarts != 0) {
    return FlagError("max_restarts", restarts,
                     "not supported; write 0, and start a failed run again");
  }
  return absl::OkStatus();
}

// Checks all flags. flags: as the user typed them.
absl::Status CheckFlags(std::span<char* const> flags) {
  const auto wrong = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(what...));
  };
  LOCKSTEP_RETURN_IF_ERROR(CheckTorchrunFlags());
  const int nodes = absl::GetFlag(FLAGS_nnodes);
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--nnodes", nodes, 1, kMostNodes));
  const bool has_world_size = std::ranges::any_of(
      flags, [](const char* flag) { return FlagName(flag) == "world_size"; });
  if (nodes != 1 && has_world_size) {
    return wrong("--world_size is the number of ranks on all nodes, but ",
                 "--nnodes is ", nodes, "; use --nproc, per node");
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--node_rank", absl::GetFlag(FLAGS_node_rank), 0, nodes - 1));
  const absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
  if (timeout <= absl::ZeroDuration()) {
    return wrong("--timeout=", absl::FormatDuration(timeout),
                 " is not more than 0");
  }
  return absl::OkStatus();
}

int Main(std::span<char* const> argv) {
  std::vector<std::string> command;
  const std::optional<int> ended = BeginCommand(LaunchUsage(), argv, &command);
  if (ended.has_value()) return *ended;
  const absl::StatusOr<int> ranks = RanksFromFlag();
  if (!ranks.ok()) return Fail(kName, ranks.status());
  const int nproc = *ranks;
  absl::Status status =
      CheckFlags(argv.subspan(1, argv.size() - 1 - command.size()));
  if (!status.ok()) return Fail(kName, status);
  if (command.empty()) {
    Fail(kName, absl::NotFoundError("no command to launch; see --help"));
    return kUsageError;
  }
  status = EnterUserDirectory();
  if (!status.ok()) return Fail(kName, status);
  const Deadline deadline(absl::GetFlag(FLAGS_timeout));
  absl::StatusOr<std::unique_ptr<NodeGroup>> nodes = JoinNodes(nproc);
  if (!nodes.ok()) {
    const int exit_status = Fail(kName, nodes.status());
    return absl::IsDeadlineExceeded(nodes.status()) ? kTimedOut : exit_status;
  }
  const absl::StatusOr<std::vector<RankPlacement>> placements =
      Place(nproc, *nodes == nullptr ? 0 : (*nodes)->place().first_rank);
  if (!placements.ok()) return Fail(kName, placements.status());
  absl::StatusOr<LaunchSummary> summary =
      Launch({.nproc = nproc,
              .argv = command,
              .prefix_output = absl::GetFlag(FLAGS_prefix_output),
              .log_dir = absl::GetFlag(FLAGS_log_dir),
              .placements = *placements,
              .timeout = std::max(deadline.remaining(), kShortest),
              .nodes = nodes->get()});
  // The user set the whole limit; the meeting of the nodes took a part of it.
  if (summary.ok() && summary->timed_out.has_value()) {
    summary->timed_out = absl::GetFlag(FLAGS_timeout);
  }
  std::optional<NodeFailure> elsewhere;
  if (*nodes != nullptr) elsewhere = FinishNodes(**nodes, summary);
  if (summary.ok()) return Report(*summary, elsewhere);
  Fail(kName, summary.status());
  return ExitStatusOf(summary.status());
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::Main({argv, static_cast<size_t>(argc)});
}
