// fork and exec, with the error of exec brought back.
#include "collectives/launch/rank_process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/launch/owned_fd.h"
#include "collectives/usable_cores.h"

namespace lockstep {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) {
    pointers.push_back(const_cast<char*>(string.c_str()));  // exec's old type.
  }
  pointers.push_back(nullptr);
  return pointers;
}

// The child's side; returns only if the command could not be started.
void BecomeRank(const RankCommand& command, char* const* argv,
                char* const* environment, pid_t parent, int error_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // It died before the line above.
  const int null_fd = open("/dev/null", O_RDONLY);
  if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
      dup2(command.out_fd, STDOUT_FILENO) < 0 ||
      dup2(command.err_fd, STDERR_FILENO) < 0) {
    return;
  }
  if (error_fd > 3) close_range(3, error_fd - 1, 0);
  close_range(error_fd + 1, UINT_MAX, 0);
  if (!command.cpus.empty() && !SetAffinity(command.cpus)) return;
  pthread_sigmask(SIG_SETMASK, &command.signal_mask, nullptr);
  execvpe(argv[0], argv, environment);
}

}  // namespace

std::vector<std::string> MergedEnvironment(const Environment& changes) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : changes) merged[name] = value;
  std::vector<std::string> result;
  for (const auto& [name, value] : merged) {
    result.push_back(absl::StrCat(name, "=", value));
  }
  return result;
}

RankStart StartRank(const RankCommand& command) {
  const std::vector<char*> argv = Pointers(command.argv);
  const std::vector<char*> environment = Pointers(command.environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {.error = errno};
  OwnedFd error_reader(ends[0]);
  OwnedFd error_writer(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return {.error = errno};
  if (pid == 0) {
    BecomeRank(command, argv.data(), environment.data(), parent,
               error_writer.get());
    const int error = errno;
    if (write(error_writer.get(), &error, sizeof(error)) < 0) _exit(1);
    _exit(127);
  }
  error_writer.Close();
  int error = 0;
  ssize_t size = 0;
  do {
    size = read(error_reader.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  if (size != sizeof(error)) return {.pid = pid};
  waitpid(pid, nullptr, 0);
  return {.error = error};
}

}  // namespace lockstep
