// A case as the checker plays it: the starts that it takes and what is judged.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CHECK_CASE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CHECK_CASE_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/check/trainer_run.h"
#include "conformance/check/verdict.h"
#include "conformance/protocol/case.h"

namespace lockstep {

// One run of a case at one world size: one start, or two where it is stopped
// and resumed.
struct CasePlan {
  Case c;                       // c.batch_sizes has the run's world size.
  std::optional<Case> resumed;  // The second start.
};

// A layer of the model, and its tensors by their names in the weights.
struct NamedLayer {
  std::string name;  // As in "the first convolution".
  std::vector<std::string> tensors;
};

struct CheckCase {
  std::string name;
  std::string about;          // One sentence for a reader of the report.
  std::vector<Claim> claims;  // Those that are judged.
  CasePlan one_rank;
  CasePlan all_ranks;
  CaseFiles files;
  // In the order of the forward pass, to say which tensor differs first. What
  // is in no layer comes after, by name.
  std::vector<NamedLayer> layers = {};
};

// What a case's starts gave. A resumed run's two starts are joined: steps of
// the second after those of the first.
struct CaseRuns {
  TrainerRun one_rank;
  TrainerRun all_ranks;
  // One rank again, each time with the samples of every step in another order:
  // how far they are from one_rank is the trainer's own rounding. Empty where
  // no number is compared.
  std::vector<TrainerRun> shadows;
};

// Starts the trainer once more with one rank, to tell causes apart: one step,
// or no step (`epochs` is 0) and an evaluation, on part of the data. Only asked
// for when a claim fails (and for local batch norm's reference).
struct Probe {
  Case c;  // World size 1.
  CaseFiles files;
};
using RunProbe = std::function<absl::StatusOr<TrainerRun>(const Probe& probe)>;

// Judges every claim in `check.claims`, in order. A claim that cannot be judged
// because an earlier one failed is kSkipped and says so.
std::vector<Verdict> Judge(const CheckCase& check, const CaseRuns& runs,
                           const RunProbe& probe);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CHECK_CASE_H_
