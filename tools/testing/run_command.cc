// Runs a command of this project as its user would.
#include "tools/testing/run_command.h"

#include <sys/wait.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"

namespace lockstep {

CommandOutcome RunCommand(const std::string& command, int deadline_seconds) {
  CommandOutcome outcome;
  FILE* const pipe = popen(
      absl::StrCat("exec timeout ", deadline_seconds, " ", command, " 2>&1")
          .c_str(),
      "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  size_t size;
  while ((size = fread(buffer.data(), 1, buffer.size(), pipe)) > 0) {
    outcome.output.append(buffer.data(), size);
  }
  const int status = pclose(pipe);
  outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

}  // namespace lockstep
