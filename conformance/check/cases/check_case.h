// A case as the checker uses it: what the trainer is started on, which claims
// are judged, what the starts gave, and the tensors of files and of ranks'
// outputs as numbers.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CASES_CHECK_CASE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CASES_CHECK_CASE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {

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
  Case c;                            // c.batch_sizes has the run's world size.
  std::optional<Case> resumed = {};  // The second start.
};

// A layer of the model, and its tensors by their names in the weights.
struct NamedLayer {
  std::string name;  // As in "the first convolution".
  std::vector<std::string> tensors;
};

struct CheckCase {
  std::string name;
  std::string about;               // One sentence for a reader of the report.
  std::vector<Claim> claims = {};  // Those that are judged.
  CasePlan one_rank = {};
  CasePlan all_ranks = {};
  CaseFiles files = {};
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

// What a start of a judged trainer gave: how it ended and what its ranks wrote.
struct TrainerRun {
  // What became of a rank's output.
  struct Rank {
    absl::Status status = {};  // Of reading it.
    RankOutput output = {};    // Empty unless `status` is OK.
  };

  enum class End {
    kExited,    // With status 0, every rank that was started.
    kFailed,    // Another status, or a signal.
    kTimedOut,  // It was ended when its time was up.
  };

  int world_size = 1;
  End end = End::kExited;
  // How it failed or how long it had, in one line; "" for kExited.
  std::string how = {};
  // The last lines of its standard output and error, printable: at most 20, of
  // at most 200 bytes. Each begins with "[rank] " if ranks were started one by
  // one.
  std::vector<std::string> last_lines = {};
  // The command that starts it again by hand; "" if its case is not kept.
  std::string by_hand = {};
  std::vector<Rank> ranks = {};  // world_size of them.
};

// What a case's starts gave. A resumed run's two starts are joined.
struct CaseRuns {
  TrainerRun one_rank;
  TrainerRun all_ranks;
  // One rank again, each time with the samples of every step in another order
  // (ReorderedStarts): how far they are from one_rank is the trainer's own
  // rounding. Empty where no number is compared.
  std::vector<TrainerRun> reordered;
};

template <typename T>
bool Includes(const std::vector<T>& all, const T& one) {
  return std::ranges::find(all, one) != all.end();
}

// begin, begin + 1, ...
std::vector<int64_t> Range(int64_t begin, int64_t count);

// How many samples "train" or "test" has; 0 if there are no labels of it.
int64_t SampleCount(const CaseFiles& files, const std::string& part);

// The files with the samples of one part, "train" or "test", replaced by those
// of `indices`, each in [0, SampleCount), in that order.
CaseFiles WithSamples(const CaseFiles& files, const std::string& part,
                      std::span<const int64_t> indices);

using Values = std::vector<double>;
using Tensors = std::map<std::string, Values>;  // By the weights' names.

// The values of a tensor of any type: exact, except int64 beyond 2^53.
Values ToValues(const NamedTensor& tensor);

// The tensors that a rank wrote of one kind ("gradient", "parameter" or
// "buffer") and step; empty if it wrote none.
Tensors TensorsOf(const RankOutput& output, const std::string& kind,
                  int64_t step);

// The tensors of weights.safetensors, from which training starts.
Tensors StartOf(const CheckCase& check);

// NaN if any number is; 0 for no numbers.
double LargestMagnitude(std::span<const double> values);

// The largest |a - b|; NaN if any is, infinite if a and b differ in size.
double LargestDifference(std::span<const double> a, std::span<const double> b);

// a - b, a + factor * b, factor * a: element by element for values of the same
// number, tensor by tensor for the tensors that both have.
Values Minus(const Values& a, const Values& b);
Values PlusTimes(const Values& a, double factor, const Values& b);
Tensors Minus(const Tensors& a, const Tensors& b);
Tensors PlusTimes(const Tensors& a, double factor, const Tensors& b);
Tensors Times(double factor, const Tensors& a);

// The mean of the terms with these weights, of the tensors that all have.
Tensors WeightedMean(std::span<const double> weights,
                     std::span<const Tensors> terms);

// One unit in the last place of a number of `digits` binary digits (24 for
// float32, 8 for bfloat16) that is as large as |value|; 0 for 0.
double UnitInLastPlace(double value, int digits);

// The names of the weights, layer by layer in the forward pass, then the
// others.
std::vector<std::string> NamesInOrder(const CheckCase& check);

// "W2 (the second convolution)"; the name alone if it is in no layer.
std::string WithLayer(const CheckCase& check, const std::string& name);

// The cases that a trainer is judged on, for `world_size` ranks, at least 2; in
// the order in which they are reported, the plainest first. The cases are
// small: global batches of a few samples per rank, and at most six steps or N.
// Each takes one start with one rank and one with all ranks, but the resumed
// case takes two with all ranks.
//
// The data are BlobDataset's and the weights WellConditionedLeNet's
// (lenet_reference.h). Batch norms have weights of 0.1 and biases of 1: ten
// standard deviations from zero, where the ReLU behind them has its kink.
//
// In the case of accumulation, `accumulate` is none of 1, N, N * N, so that a
// missing division shows as a factor of its own; one rank accumulates nothing.
std::vector<CheckCase> BuiltInCases(int world_size);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CASES_CHECK_CASE_H_
