// What Bazel's environment and the arguments say.
#include "report/command_text.h"

#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "report/machine.h"

namespace lockstep {
namespace {

// Set by `bazel run`.
const char* Workspace() { return std::getenv("BUILD_WORKSPACE_DIRECTORY"); }

}  // namespace

std::string CommandText(const std::string& label, std::span<char* const> argv) {
  const bool bazel = Workspace() != nullptr;
  std::vector<std::string> words = {bazel ? absl::StrCat("bazel run ", label)
                                          : std::string(argv[0])};
  if (bazel && argv.size() > 1) words.push_back("--");
  words.insert(words.end(), argv.begin() + 1, argv.end());
  return absl::StrJoin(words, " ");
}

std::string CommitText() {
  return Workspace() != nullptr ? CheckedOutCommit(Workspace()) : "";
}

}  // namespace lockstep
