// What planting the bugs gave, and its forms: text and JSON.
#ifndef LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_
#define LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_

#include <span>
#include <string>
#include <vector>

#include "conformance/mutant.h"
#include "nlohmann/json.hpp"
#include "report/machine.h"

namespace lockstep {

struct PlantedResult {
  PlantedBug bug;
  Caught caught;
  std::string error;  // Why it gave nothing to check; "": it did.
  double seconds = 0;

  bool is_caught() const { return error.empty() && IsCaught(bug, caught); }
  bool is_named() const { return is_caught() && IsNamed(bug, caught); }
};

struct MutantsReport {
  std::string command;
  std::vector<PlantedResult> results;
  Machine machine;
  std::string created;  // As TimeStamp().
  std::string commit;   // "" if unknown.
};

struct MutantTotals {
  int bugs = 0;
  int caught = 0;
  int named = 0;  // Of those.
  double seconds = 0;
};
MutantTotals MutantTotalsOf(std::span<const PlantedResult> results);

// Lines of at most kTableColumns, as far as words allow: the bug, what was
// planted, which checks caught it, whether it was named, the diagnosis.
std::string FormatPlanted(const PlantedResult& result);

// A line a folder, one for all, and those that are not caught or not named.
std::string FormatMutantTotals(std::span<const PlantedResult> results);

// {"command", "created", "commit", "machine", "totals": {"bugs", "caught",
// "named"}, "bugs": [{"folder", "name", "planted", "checks", "caught_by",
// "diagnosis", "says", "caught", "named", "error", "seconds"}]}
nlohmann::ordered_json MutantsJson(const MutantsReport& report);

// The command `mutants`: plants known bugs and shows what the checks say.

// Plants the bugs of `suites` that the flags in `argv` ask for, each as it is
// printed; returns the exit status. --help says what flags there are.
int MutantsCommand(std::span<char* const> argv,
                   std::span<const BugSuite> suites);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_
