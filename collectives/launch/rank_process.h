// Starts the process of one rank.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PROCESS_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// Variables that are set for a process, on top of those it inherits.
using Environment = std::vector<std::pair<std::string, std::string>>;

struct RankCommand {
  std::vector<std::string> argv;         // As execvp() takes it; not empty.
  std::vector<std::string> environment;  // "NAME=value", all of them.
  int out_fd = 1;                        // Becomes standard output; borrowed.
  int err_fd = 2;                        // Becomes standard error; borrowed.
  sigset_t signal_mask = {};             // What the command starts with.
  std::vector<int> cpus = {};            // To be bound to; empty: not bound.
};

// This process's environment with `changes` made to it, later ones last.
std::vector<std::string> MergedEnvironment(const Environment& changes);

struct RankStart {
  pid_t pid = 0;  // Of the running command; 0 if it was not started.
  int error = 0;  // Else the errno that says why.
};

// Runs the command as a child of this process, in a process group of its own,
// reading /dev/null, with no other descriptor than 0, 1 and 2. It is killed
// when this process dies. Returns when the command is running, or could not be
// started. For single-threaded processes.
RankStart StartRank(const RankCommand& command);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PROCESS_H_
