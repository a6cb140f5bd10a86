// Every bug that is planted somewhere in the suite, in one form: what it is,
// which checks are there for it, and how to plant it once.
#ifndef LOCKSTEP_CONFORMANCE_MUTANT_H_
#define LOCKSTEP_CONFORMANCE_MUTANT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep {

// What became of a planted bug.
struct Caught {
  std::vector<std::string> checks;  // Those that reject it; none: it survives.
  std::string diagnosis;            // What the one that names it best says.
};

struct PlantedBug {
  std::string folder;               // Its suite's.
  std::string name;                 // "PadsFromTheEnd"; once in its folder.
  std::string bug;                  // What is planted, in a phrase.
  std::vector<std::string> checks;  // Those that must reject it.
  std::string says;                 // What the diagnosis must contain.
  // Plants it in the first case in which it must show, and asks every check of
  // that case. Errors: of a run that gave nothing to check.
  std::function<absl::StatusOr<Caught>()> plant;
};

// "sampling.PadsFromTheEnd".
std::string FullName(const PlantedBug& bug);

// Whether all the checks that must reject it do, and whether the diagnosis has
// the words that name it.
bool IsCaught(const PlantedBug& bug, const Caught& caught);
bool IsNamed(const PlantedBug& bug, const Caught& caught);

// The bugs of one folder.
struct BugSuite {
  std::string folder;               // "sampling".
  std::vector<std::string> checks;  // All that the folder has.
  std::vector<PlantedBug> bugs;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_MUTANT_H_
