// The flag --help, and absl's flags by collectives/launch/command_line.
#include "report/begin_command.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "collectives/launch/command_line.h"
#include "report/command_status.h"
#include "report/terminal.h"

ABSL_FLAG(bool, help, false, "print the usage");

namespace lockstep {

std::optional<int> BeginCommand(absl::string_view command,
                                const std::string& usage,
                                std::span<char* const> argv) {
  const absl::Status flags =
      ParseFlags(std::vector<std::string>(argv.begin() + 1, argv.end()));
  if (!flags.ok()) {
    Fail(command, flags);
    return kUsageError;
  }
  if (!absl::GetFlag(FLAGS_help)) return std::nullopt;
  Print(usage);
  return 0;
}

}  // namespace lockstep
