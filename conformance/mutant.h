// A mutant: a mistake that somebody has made, planted around the product's
// parts and never inside them, and the checks that must reject it.
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

// Makes each call by `run` of the group that it borrows.
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

// What became of a mutant.
struct Caught {
  std::vector<std::string> checks;  // Those that reject it; none: it survives.
  std::string diagnosis;            // What the one that names it best says.
};

// Of a check that starts its kDataLoss with its name and ": ". Errors: any
// other status that is not OK.
absl::StatusOr<Caught> CaughtBy(const absl::Status& status);

// What each of a folder's checks says of one run, by name. The diagnosis is
// what `naming` says, or where there is none the first that fails. Errors:
// kInternal if a check failed otherwise than by kDataLoss.
absl::StatusOr<Caught> CaughtBy(
    std::span<const std::pair<std::string, absl::Status>> verdicts,
    absl::string_view naming = "");

// Names of checks, also from one text: "RanksAgree, Buffers".
struct CheckNames : std::vector<std::string> {
  CheckNames() = default;
  CheckNames(std::initializer_list<std::string> names) : vector(names) {}
  CheckNames(const char* text)
      : vector(absl::StrSplit(text, ", ")) {}  // Not explicit: Mutant's.
};

struct Mutant {
  std::string name;         // "PadsFromTheEnd"; once in its folder.
  std::string planted;      // What is wrong, in a phrase.
  CheckNames checks;        // Those that must reject it, and no other.
  std::string says;         // What the diagnosis must contain.
  std::string folder = "";  // Its suite's.
  // Plants it in the first case in which it must show, and asks every check of
  // that case. Errors: of a run that gave nothing to check.
  std::function<absl::StatusOr<Caught>()> plant = nullptr;
  // Plants it in each case of the folder's grid, or of the slice of it that
  // runs always (slice.h), in which it must show. Returns how many these are.
  // Errors: kInternal, with the case, where the first of `checks` is not what
  // rejects it or does not say so. Null where the folder has no grid.
  std::function<absl::StatusOr<int64_t>()> plant_everywhere = nullptr;
};

// "sampling.PadsFromTheEnd".
std::string FullName(const Mutant& mutant);

// How a failing test shows its parameter: what is planted.
void PrintTo(const Mutant& mutant, std::ostream* out);

// Whether all the checks that must reject it do, and whether the diagnosis has
// the words that name it.
bool IsCaught(const Mutant& mutant, const Caught& caught);
bool IsNamed(const Mutant& mutant, const Caught& caught);

// Plants the mutant in the first case in which it must show. Errors: plant's;
// kInternal, with the diagnosis, unless it is caught and named.
absl::Status PlantAndExpectCaught(const Mutant& mutant);

// OK if `status` is what the first check of the mutant must say: kDataLoss,
// its name, and the words that name the mutant. Error: kInternal, which starts
// with `where`.
absl::Status ExpectNamed(const Mutant& mutant, const absl::Status& status,
                         absl::string_view where);

// The mutants of one folder.
struct MutantSuite {
  std::string folder;               // "sampling".
  std::vector<std::string> checks;  // All that the folder has.
  std::vector<Mutant> mutants;      // With this folder.
};

// A suite of these mutants, whose `folder` it sets. checks: names.
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

// Never defined: what the compiler then names in its error.
void NameItInTheTableOfChecks();

// The name of a check in `kTable`, its folder's array of them. Any other
// literal does not compile. So no check that takes its name as a NameIn can
// fail under a name that all_mutants_test asks no mutant of.
template <const auto& kTable>
class NameIn {
 public:
  // Not explicit: Breaks("Guards", ...).
  consteval NameIn(const char* name) : name_(name) {
    if (!IsNameIn(kTable, name)) NameItInTheTableOfChecks();
  }

  constexpr const char* name() const { return name_; }

 private:
  const char* name_;
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_MUTANT_H_
