// Prints the networks with their sizes as a Markdown table.
#include <cstdio>
#include <span>

#include "absl/status/status.h"
#include "base/command_line.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

Usage TableUsage() {
  return {.command = "table",
          .introduction = R"(table

Prints a table of the networks, in Markdown. A row names the source of the
tensors' names and first values. For images as in that source, it gives the
number of parameters, the numbers in buffers, and GFLOP of one image forward (a
multiplication and an addition count as two).

  bazel run //models/networks:table
)",
          .sections = {},
          .ending = R"(Exit status: 0 if all went well, 2 for a wrong flag.
)"};
}

absl::Status Run(std::span<char* const> /*argv*/) {
  std::fputs(NetworksTable().c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::CommandMain(
      lockstep::TableUsage(), {argv, static_cast<size_t>(argc)}, lockstep::Run);
}
