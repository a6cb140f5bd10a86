// The command `mutants`: plants mutants and shows what the checks say of them.
#ifndef LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_
#define LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_

#include <span>
#include <string>
#include <vector>

#include "conformance/mutant.h"
#include "report/document.h"

namespace lockstep::conformance {

// Every folder's mutants. Not to be called, nor a mutant planted, by two
// threads at once.
std::vector<MutantSuite> AllMutantSuites();

struct PlantedResult {
  Mutant mutant;
  Caught caught;
  std::string error;  // Why it gave nothing to check; "": it did.
  double seconds = 0;

  bool is_caught() const { return error.empty() && IsCaught(mutant, caught); }
  bool is_named() const { return is_caught() && IsNamed(mutant, caught); }
};

struct MutantTotals {
  int mutants = 0;
  int caught = 0;
  int named = 0;  // Of those.
  double seconds = 0;
};
MutantTotals MutantTotalsOf(std::span<const PlantedResult> results);

// Lines of at most kTableColumns, as far as words allow: the mutant, what was
// planted, which checks caught it, whether it was named, the diagnosis.
std::string FormatPlanted(const PlantedResult& result);

// A line a folder, one for all, and those that are not caught or not named.
std::string FormatMutantTotals(std::span<const PlantedResult> results);

// The report as JSON: its data are {"totals": {"bugs", "caught", "named"},
// "bugs": [{"folder", "name", "planted", "checks", "caught_by", "diagnosis",
// "says", "caught", "named", "error", "seconds"}]}.
report::Document MutantsDocument(const report::Origin& origin,
                                 std::span<const PlantedResult> results);

// Plants the mutants of `suites` that the flags in `argv` ask for, each as it
// is printed; returns the exit status. --help says what flags there are.
int MutantsCommand(std::span<char* const> argv,
                   std::span<const MutantSuite> suites);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_
