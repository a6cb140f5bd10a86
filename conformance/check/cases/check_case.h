// A case as the checker plays it: the starts that it takes and what is judged.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CASES_CHECK_CASE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CASES_CHECK_CASE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/check/judge/verdict.h"
#include "conformance/check/run/trainer_run.h"
#include "conformance/protocol/case.h"
#include "models/io/safetensors.h"

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

// Tensors of a case's files, made and rearranged.

NamedTensor FloatTensor(std::vector<int64_t> shape,
                        std::span<const float> values);
NamedTensor Int64Tensor(std::vector<int64_t> shape,
                        std::span<const int64_t> values);

// How many samples "train" or "test" has; 0 if there are no labels of it.
int64_t SampleCount(const CaseFiles& files, const std::string& part);

// The files with the samples of one part, "train" or "test", replaced by those
// of `indices`, each in [0, SampleCount), in that order.
CaseFiles WithSamples(const CaseFiles& files, const std::string& part,
                      std::span<const int64_t> indices);

// One rank's run again, with the samples of every step in another order.

// A start of one rank on data whose rows stand in another order.
struct Shadow {
  CasePlan plan;
  CaseFiles files;
};

// Two shadows of check.one_rank: within every global batch the samples are
// reversed, and rotated by half; the test set likewise. Each step then has the
// same samples, so only rounding can change. None where no number is compared
// (only kRun and kSamples are claimed) or the order is random.
std::vector<Shadow> ShadowsOf(const CheckCase& check);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CASES_CHECK_CASE_H_
