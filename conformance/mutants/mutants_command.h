// The command `mutants`: plants mutants and shows which checks reject them.
#ifndef LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_
#define LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_

#include <span>
#include <string>
#include <vector>

#include "conformance/mutant.h"
#include "report/document.h"

namespace lockstep::conformance {

// Returns every folder's mutants. Not thread safe: two threads must not call
// this function or plant a mutant at the same time.
std::vector<MutantSuite> AllMutantSuites();

struct PlantedResult {
  Mutant mutant;
  Caught caught;
  std::string error;  // Why there was nothing to check. Empty if there was.
  double seconds = 0;

  bool is_caught() const { return error.empty() && IsCaught(mutant, caught); }
  bool is_named() const { return is_caught() && IsNamed(mutant, caught); }
};

struct MutantTotals {
  int mutants = 0;
  int caught = 0;
  int named = 0;  // The caught mutants that are named.
  double seconds = 0;
};
MutantTotals MutantTotalsOf(std::span<const PlantedResult> results);

// Returns lines of at most kTableColumns, as far as words allow: the mutant,
// its mistake, the checks that caught it, whether it was named, and the
// diagnosis.
std::string FormatPlanted(const PlantedResult& result);

// Returns one line per folder, one for all folders, and the mutants that are
// not caught or not named.
std::string FormatMutantTotals(std::span<const PlantedResult> results);

// Returns the report as JSON. Its data are {"totals": {"bugs", "caught",
// "named"}, "bugs": [{"folder", "name", "planted", "checks", "caught_by",
// "diagnosis", "says", "caught", "named", "error", "seconds"}]}.
report::Document MutantsDocument(const report::Origin& origin,
                                 std::span<const PlantedResult> results);

// Plants the mutants of `suites` that the flags in `argv` select, and prints
// each result before it plants the next. Returns the exit status. --help
// describes the flags.
int MutantsCommand(std::span<char* const> argv,
                   std::span<const MutantSuite> suites);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_
