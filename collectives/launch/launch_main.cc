// launch: starts N ranks of any program on this host.
#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/launch/command_line.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/launcher.h"
#include "collectives/usable_cores.h"

ABSL_FLAG(int, nproc, lockstep::UsableCores(), "ranks to start");
ABSL_FLAG(bool, prefix_output, true, "put \"[rank] \" before each line");
ABSL_FLAG(bool, help, false, "print the usage");

namespace lockstep {
namespace {

constexpr char kUsage[] =
    R"(launch [--nproc=N] [--noprefix_output] [--] COMMAND ARGS...

Starts N ranks (processes) of COMMAND on this host and waits for them.

  launch --nproc=2 -- ./train --epochs=1
  launch --nproc=4 -- python3 train.py
  bazel run //collectives:launch -- --nproc=2 -- sh -c 'echo rank $RANK'

Flags:
  --nproc=N          ranks to start; by default one for each core
  --noprefix_output  ranks write straight to this terminal; by default each
                     line of rank 1 starts with "[1] "
  --help             this text

Each rank finds in its environment:
  RANK, LOCAL_RANK               0 to N-1
  WORLD_SIZE, LOCAL_WORLD_SIZE   N
  LOCKSTEP_RENDEZVOUS            a file through which ranks find each other
  OMP_NUM_THREADS                1, unless it is set already (as torchrun does)
Its standard input is empty.

SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 are passed on to the
ranks; a second SIGINT kills them. When one rank fails the others are stopped.
No process that a rank has started is left behind.

Exit status: 0 if every rank exits with 0; else that of the first rank to fail,
or 128 + N if signal N killed it. 2: wrong usage. 126: COMMAND cannot be run.
127: COMMAND not found.
)";

constexpr int kUsageError = 2;

int Fail(const std::string& message, int exit_status) {
  std::fprintf(stderr, "launch: %s\n", message.c_str());
  return exit_status;
}

int ExitStatusOf(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kNotFound:
      return 127;
    case absl::StatusCode::kPermissionDenied:
      return 126;
    default:
      return 1;
  }
}

int Main(std::vector<std::string> arguments) {
  absl::StatusOr<std::vector<std::string>> command =
      ParseFlagsBeforeCommand(arguments);
  if (!command.ok()) {
    return Fail(std::string(command.status().message()), kUsageError);
  }
  if (absl::GetFlag(FLAGS_help)) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const int nproc = absl::GetFlag(FLAGS_nproc);
  if (nproc < 1) {
    return Fail("--nproc=" + std::to_string(nproc) + " is less than 1",
                kUsageError);
  }
  if (command->empty()) {
    return Fail("no command to launch; see --help", kUsageError);
  }
  // `bazel run` starts programs in a folder of its own.
  const char* folder = std::getenv("BUILD_WORKING_DIRECTORY");
  if (folder != nullptr && chdir(folder) != 0) {
    return Fail(std::string("BUILD_WORKING_DIRECTORY=") + folder + ": " +
                    std::strerror(errno),
                1);
  }
  const absl::StatusOr<LaunchSummary> summary =
      Launch({.nproc = nproc,
              .argv = *command,
              .prefix_output = absl::GetFlag(FLAGS_prefix_output)});
  if (!summary.ok()) {
    return Fail(std::string(summary.status().message()),
                ExitStatusOf(summary.status()));
  }
  const std::string text = FormatSummary(*summary);
  if (!text.empty()) std::fprintf(stderr, "%s\n", text.c_str());
  return ExitStatus(*summary);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::Main(std::vector<std::string>(argv + 1, argv + argc));
}
