// launch: starts N ranks of any program on this host.
#include <cstddef>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/process.h"
#include "collectives/launch/launcher.h"
#include "collectives/launch/rank_placement.h"

ABSL_FLAG(int, nproc, lockstep::UsableCores(),
          "ranks to start, 1 to 4096; by default one for each core");
ABSL_FLAG(std::string, log_dir, "",
          "write all that rank R prints to DIR/rank-R.log too, without the "
          "\"[R] \"; makes DIR, overwrites earlier logs");
ABSL_FLAG(bool, prefix_output, true,
          "pass on the ranks' output as it comes; by default each line of rank "
          "1 starts with \"[1] \"");
ABSL_FLAG(bool, bind_cores, false,
          "bind each rank to cores of its own, an equal part of those that "
          "this program may use, and say which; ranks take turns if there are "
          "too few. Off by default, since two runs at once would be bound to "
          "the same cores");
ABSL_FLAG(int, gpus_per_rank, 0,
          "show each rank N of the GPUs in CUDA_VISIBLE_DEVICES, or of this "
          "host's if that is not set, as numbers 0 to N-1. By default, 0, "
          "every rank sees all and takes number LOCAL_RANK");
ABSL_FLAG(bool, share_gpus, false,
          "let ranks take turns on the GPUs if there are too few");
ABSL_FLAG(absl::Duration, timeout, absl::InfiniteDuration(),
          "end the ranks that have not ended after TIME: 90s, 1h30m");

namespace lockstep {
namespace {

constexpr char kName[] = "launch";

Usage LaunchUsage() {
  return {.command = kName,
          .introduction = R"(launch [FLAGS] [--] COMMAND ARGS...

Starts N ranks (processes) of COMMAND on this host and waits for them.

  launch --nproc=2 -- ./train --epochs=1
  launch --nproc=4 --log_dir=logs -- python3 train.py
  launch --nproc=8 --gpus_per_rank=1 --bind_cores -- ./train
  bazel run //collectives:launch -- --nproc=2 -- sh -c 'echo rank $RANK'
)",
          .sections = {{"Flags:",
                        "nproc=N log_dir=DIR noprefix_output bind_cores "
                        "gpus_per_rank=N share_gpus timeout=TIME help"}},
          .ending = R"(Each rank finds in its environment, as under torchrun:
  RANK, LOCAL_RANK               0 to N-1
  WORLD_SIZE, LOCAL_WORLD_SIZE   N
  GROUP_RANK, GROUP_WORLD_SIZE   0 and 1: there is one host
  MASTER_ADDR, MASTER_PORT       127.0.0.1 and a free port, for rank 0 to use
  OMP_NUM_THREADS                unless it is set already: 1, or its number of
                                 cores with --bind_cores
and besides:
  LOCKSTEP_RENDEZVOUS            a file through which ranks find each other
  CUDA_VISIBLE_DEVICES           its GPUs, with --gpus_per_rank
Its standard input is empty.

SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 are passed on to the
ranks; a second SIGINT kills them. When one rank fails the others are stopped,
and the last lines of standard error say which rank was first, how it ended,
when, and what became of the others. No process that a rank has started is left
behind.

Exit status: 0 if every rank exits with 0; else that of the first rank to fail,
or 128 + N if signal N killed it. 124: the time was up. 2: wrong usage. 126:
COMMAND cannot be run. 127: COMMAND not found. 1: anything else that keeps the
ranks from running.
)"};
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

// The ranks' placement, after a line that says to which cores they are bound.
absl::StatusOr<std::vector<RankPlacement>> Place(int nproc) {
  absl::StatusOr<std::vector<RankPlacement>> placements =
      PlaceRanks(nproc, {.gpus_per_rank = absl::GetFlag(FLAGS_gpus_per_rank),
                         .share_gpus = absl::GetFlag(FLAGS_share_gpus),
                         .bind_cores = absl::GetFlag(FLAGS_bind_cores)});
  if (!placements.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", placements.status().message()));
  }
  const std::string binding = FormatBinding(*placements);
  if (!binding.empty()) std::fprintf(stderr, "%s\n", binding.c_str());
  return placements;
}

// How the run went, on standard error; returns the exit status.
int Report(const LaunchSummary& summary) {
  if (!summary.log_error.empty()) {
    std::fprintf(stderr, "launch: %s; the log is not complete\n",
                 summary.log_error.c_str());
  }
  const std::string text = FormatSummary(summary);
  if (!text.empty()) std::fprintf(stderr, "%s\n", text.c_str());
  return ExitStatus(summary);
}

absl::Status CheckFlags() {
  const int nproc = absl::GetFlag(FLAGS_nproc);
  const auto wrong = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(what...));
  };
  if (nproc < 1) return wrong("--nproc=", nproc, " is less than 1");
  if (nproc > kMostRanksOnHost) {
    return wrong("--nproc=", nproc, " is more than ", kMostRanksOnHost);
  }
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
  absl::Status status = CheckFlags();
  if (!status.ok()) return Fail(kName, status);
  if (command.empty()) {
    Fail(kName, absl::NotFoundError("no command to launch; see --help"));
    return kUsageError;
  }
  status = EnterUserDirectory();
  if (!status.ok()) return Fail(kName, status);
  const int nproc = absl::GetFlag(FLAGS_nproc);
  const absl::StatusOr<std::vector<RankPlacement>> placements = Place(nproc);
  if (!placements.ok()) return Fail(kName, placements.status());
  const absl::StatusOr<LaunchSummary> summary =
      Launch({.nproc = nproc,
              .argv = command,
              .prefix_output = absl::GetFlag(FLAGS_prefix_output),
              .log_dir = absl::GetFlag(FLAGS_log_dir),
              .placements = *placements,
              .timeout = absl::GetFlag(FLAGS_timeout)});
  if (summary.ok()) return Report(*summary);
  Fail(kName, summary.status());
  return ExitStatusOf(summary.status());
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::Main({argv, static_cast<size_t>(argc)});
}
