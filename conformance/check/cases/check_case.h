// A case as the checker uses it: what the trainer is started on, and which
// claims are judged.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CASES_CHECK_CASE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CASES_CHECK_CASE_H_

#include <optional>
#include <string>
#include <vector>

#include "conformance/protocol/case.h"

namespace lockstep {

// The claims, in the order in which they are judged: the first that fails is
// the one to read.
enum class Claim {
  kRun,         // The trainer ended, wrote what it was asked for, and no NaN.
  kSamples,     // The ranks together draw what one rank draws, each once.
  kRanksAgree,  // Every rank holds the same gradients and parameters, bitwise.
  kGradients,   // The first step's are one rank's on the global batch.
  kLoss,        // Each step's, weighted over ranks, is one rank's.
  kState,       // Parameters and buffers after each step are one rank's.
  kEvaluation,  // Metrics are one rank's, each sample counted once.
};
inline constexpr Claim kAllClaims[] = {
    Claim::kRun,  Claim::kSamples, Claim::kRanksAgree, Claim::kGradients,
    Claim::kLoss, Claim::kState,   Claim::kEvaluation};

// "run", "ranks_agree".
const char* ClaimName(Claim claim);

// One run of a case at one world size: one start, or two where the trainer is
// stopped and resumed.
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
  // In the order of the forward pass, to say which tensor differs first.
  // Tensors that are in no layer come last, by name.
  std::vector<NamedLayer> layers = {};
};

// One more start of one rank, on other rows of the case's data or on the same
// rows in another order.
struct ExtraStart {
  CasePlan plan;  // World size 1.
  CaseFiles files;
};

// Two starts of check.one_rank on reordered data: within every global batch the
// samples are reversed in one, and rotated by half in the other; the test set
// likewise. Each step then has the same samples, so only rounding can change.
// None where no number is compared (only kRun and kSamples are claimed) or the
// trainer shuffles.
std::vector<ExtraStart> ReorderedStarts(const CheckCase& check);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CASES_CHECK_CASE_H_
