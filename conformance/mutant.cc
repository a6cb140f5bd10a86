// What became of a bug.
#include "conformance/mutant.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

std::string FullName(const PlantedBug& bug) {
  return absl::StrCat(bug.folder, ".", bug.name);
}

bool IsCaught(const PlantedBug& bug, const Caught& caught) {
  return std::all_of(
      bug.checks.begin(), bug.checks.end(), [&](const std::string& check) {
        return std::find(caught.checks.begin(), caught.checks.end(), check) !=
               caught.checks.end();
      });
}

bool IsNamed(const PlantedBug& bug, const Caught& caught) {
  return absl::StrContains(caught.diagnosis, bug.says);
}

}  // namespace lockstep
