// A mutant: a real mistake, planted around the product's parts and never inside
// them, with the checks that must reject it.
#ifndef LOCKSTEP_CONFORMANCE_MUTANT_H_
#define LOCKSTEP_CONFORMANCE_MUTANT_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::conformance {

// Makes each call with `run` on the group that it borrows.
class GroupMutant : public ForwardingCommunicator {
 public:
  using RunWrong =
      std::function<absl::Status(Communicator& real, const Collective& call)>;

  GroupMutant(Communicator& real, RunWrong run)
      : ForwardingCommunicator(real), run_(std::move(run)) {}

  absl::Status Run(const Collective& call) override {
    return run_(inner(), call);
  }

 private:
  const RunWrong run_;
};

// The result of planting a mutant.
struct Caught {
  std::vector<std::string> checks;  // Rejecting checks; none: it survives.
  std::string diagnosis;  // The message of the check that names it best.
};

// Returns the result for a check whose kDataLoss starts with its name and ": ".
// Errors: any other status that is not OK; kInternal if no name starts the
// message.
absl::StatusOr<Caught> CaughtBy(const absl::Status& status);

// Returns the result for the verdicts of a folder's checks on one run, by name.
// The diagnosis is the message of `naming` or, if `naming` is empty, of the
// first check that fails. Errors: kInternal if a check failed with a code other
// than kDataLoss.
absl::StatusOr<Caught> CaughtBy(
    std::span<const std::pair<std::string, absl::Status>> verdicts,
    absl::string_view naming = "");

// Names of checks. One text can hold several: "RanksAgree, Buffers".
struct CheckNames : std::vector<std::string> {
  CheckNames() = default;
  CheckNames(std::initializer_list<std::string> names) : vector(names) {}
  CheckNames(const char* text)
      : vector(absl::StrSplit(text, ", ")) {}  // Not explicit: for Mutant.
};

struct Mutant {
  std::string name;         // "PadsFromTheEnd"; unique in its folder.
  std::string planted;      // The mistake, in a phrase.
  CheckNames checks;        // Exactly the checks that must reject it.
  std::string says;         // A part of the diagnosis.
  std::string folder = "";  // The folder of its suite.
  // Plants the mutant in the first case in which it must show, and runs every
  // check on that case. Errors: those of a run that produced nothing to check.
  std::function<absl::StatusOr<Caught>()> plant = nullptr;
  // Plants the mutant in each case in which it must show, in the folder's grid
  // or in the slice that always runs (slice.h). Returns the number of these
  // cases. Errors: kInternal, with the case, if the first of `checks` does not
  // reject it or does not name it. Null if the folder has no grid.
  std::function<absl::StatusOr<int64_t>()> plant_everywhere = nullptr;
};

// Returns a name such as "sampling.PadsFromTheEnd".
std::string FullName(const Mutant& mutant);

// Shows the parameter of a failing test: what is planted.
void PrintTo(const Mutant& mutant, std::ostream* out);

// Return whether all checks that must reject the mutant do so, and whether the
// diagnosis has the words that name it.
bool IsCaught(const Mutant& mutant, const Caught& caught);
bool IsNamed(const Mutant& mutant, const Caught& caught);

// Plants the mutant in the first case in which it must show. Errors: plant's;
// kInternal, with the diagnosis, unless the mutant is caught and named.
absl::Status PlantAndExpectCaught(const Mutant& mutant);

// Returns OK if `status` is the expected result of the mutant's first check:
// kDataLoss, the check's name, and the words that name the mutant. Error:
// kInternal, which starts with `where`.
absl::Status ExpectNamed(const Mutant& mutant, const absl::Status& status,
                         absl::string_view where);

// The mutants of one folder.
struct MutantSuite {
  std::string folder;               // "sampling".
  std::vector<std::string> checks;  // All checks of the folder.
  std::vector<Mutant> mutants;      // Each with this folder.
};

// Returns a suite of these mutants and sets their `folder`. checks: names.
template <typename Checks>
MutantSuite MakeSuite(const std::string& folder, const Checks& checks,
                      std::vector<Mutant> mutants) {
  for (Mutant& mutant : mutants) mutant.folder = folder;
  return {folder, {std::begin(checks), std::end(checks)}, std::move(mutants)};
}

constexpr bool IsNameIn(std::span<const char* const> table,
                        std::string_view name) {
  for (const std::string_view known : table) {
    if (known == name) return true;
  }
  return false;
}

// Never defined: the compiler's error shows this name.
void CheckNameIsNotInTable();

// The name of a check in `kTable`, its folder's array of names. Any other
// literal does not compile. A check that takes its name as a NameIn can
// therefore fail only under a name for which all_mutants_test requires a
// mutant.
template <const auto& kTable>
class NameIn {
 public:
  // Not explicit: PropertyError("Guards", ...).
  consteval NameIn(const char* name) : name_(name) {
    if (!IsNameIn(kTable, name)) CheckNameIsNotInTable();
  }

  constexpr const char* name() const { return name_; }

 private:
  const char* name_;
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_MUTANT_H_
