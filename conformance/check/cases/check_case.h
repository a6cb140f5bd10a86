// A case as the checker uses it: the input of the trainer, the claims to judge
// and the results of the starts. Also helpers that turn the tensors of files
// and of rank outputs into numbers.
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

// The claims, in the order in which they are judged. Read the first failed
// claim first: later failures can follow from it.
enum class Claim {
  kRun,         // The trainer ended, wrote what the case asks for, no NaN.
  kSamples,     // All ranks together draw one rank's samples, each once.
  kRanksAgree,  // Every rank holds the same gradients and parameters, bitwise.
  kGradients,   // The first step's gradients equal one rank's.
  kLoss,        // Each step's weighted mean loss equals one rank's.
  kState,       // After each step, parameters and buffers equal one rank's.
  kEvaluation,  // Metrics equal one rank's; each sample counts once.
};
inline constexpr Claim kAllClaims[] = {
    Claim::kRun,  Claim::kSamples, Claim::kRanksAgree, Claim::kGradients,
    Claim::kLoss, Claim::kState,   Claim::kEvaluation};

// Returns the name of a claim, such as "run" or "ranks_agree".
const char* ClaimName(Claim claim);

// One run of a case at one world size. The run has one start, or two if the
// trainer is stopped and resumed.
struct CasePlan {
  Case c;                            // c.batch_sizes has one entry per rank.
  std::optional<Case> resumed = {};  // The case of the second start, if any.
};

// A layer of the model, with the names of its tensors in the weights.
struct NamedLayer {
  std::string name;  // For messages: "the first convolution".
  std::vector<std::string> tensors;
};

struct CheckCase {
  std::string name;
  std::string about;               // One sentence for the report's reader.
  std::vector<Claim> claims = {};  // The claims to judge.
  CasePlan one_rank = {};
  CasePlan all_ranks = {};
  CaseFiles files = {};
  // The layers in the order of the forward pass, so that a report names the
  // first tensor that differs. Tensors outside all layers come last, by name.
  std::vector<NamedLayer> layers = {};
};

// One more start of one rank, on other rows of the case's data or on the same
// rows in another order.
struct ExtraStart {
  CasePlan plan;  // World size 1.
  CaseFiles files;
};

// Returns two starts of check.one_rank on reordered data. Within every global
// batch, one start reverses the samples; the other rotates them by half. The
// test set is reordered in the same way. Each step keeps its samples, so only
// rounding can change. Returns no starts if the claims compare no numbers (only
// kRun and kSamples are claimed) or if the trainer shuffles.
std::vector<ExtraStart> ReorderedStarts(const CheckCase& check);

// The result of one start of a judged trainer: how the start ended and what its
// ranks wrote.
struct TrainerRun {
  // The output of one rank.
  struct Rank {
    absl::Status status = {};  // The result of reading the output.
    RankOutput output = {};    // Empty unless `status` is OK.
  };

  enum class End {
    kExited,    // Every started rank exited with status 0.
    kFailed,    // A rank exited with another status or by a signal.
    kTimedOut,  // The start was ended at its timeout.
  };

  int world_size = 1;
  End end = End::kExited;
  // One line that says how the start failed, or its time limit; "" for kExited.
  std::string how = {};
  // The last lines of standard output and error, printable: at most 20 lines of
  // at most 200 bytes. Each line begins with "[rank] " if ranks were started
  // one by one.
  std::vector<std::string> last_lines = {};
  // The command that repeats the start by hand; "" if the case is not kept.
  std::string by_hand = {};
  std::vector<Rank> ranks = {};  // One entry per rank.
};

// The results of all starts of a case. The two starts of a resumed run are
// joined.
struct CaseRuns {
  TrainerRun one_rank;
  TrainerRun all_ranks;
  // Further runs of one rank, each with the samples of every step in another
  // order (ReorderedStarts). Their distance from one_rank is the trainer's own
  // rounding. Empty if the claims compare no numbers.
  std::vector<TrainerRun> reordered;
};

template <typename T>
bool Includes(const std::vector<T>& all, const T& one) {
  return std::ranges::find(all, one) != all.end();
}

// Returns the `count` numbers begin, begin + 1, ...
std::vector<int64_t> Range(int64_t begin, int64_t count);

// Returns the number of samples in "train" or "test"; 0 if the part has no
// labels.
int64_t SampleCount(const CaseFiles& files, const std::string& part);

// Returns the files with new samples in one part, "train" or "test". The new
// samples are the old ones at `indices`, in that order. Each index must be in
// [0, SampleCount).
CaseFiles WithSamples(const CaseFiles& files, const std::string& part,
                      std::span<const int64_t> indices);

using Values = std::vector<double>;
using Tensors = std::map<std::string, Values>;  // Keyed by the names in the
                                                // weights.

// Returns the values of a tensor of any type. Conversion is exact, except for
// int64 beyond 2^53.
Values ToValues(const NamedTensor& tensor);

// Returns the tensors of one kind ("gradient", "parameter" or "buffer") that a
// rank wrote for one step; empty if there are none.
Tensors TensorsOf(const RankOutput& output, const std::string& kind,
                  int64_t step);

// Returns the tensors of weights.safetensors, from which training starts.
Tensors StartOf(const CheckCase& check);

// Returns the largest |value|; NaN if any value is NaN, 0 for no values.
double LargestMagnitude(std::span<const double> values);

// Returns the largest |a - b|; NaN if any difference is NaN, infinite if the
// sizes of a and b differ.
double LargestDifference(std::span<const double> a, std::span<const double> b);

// Return a - b, a + factor * b and factor * a. Values must have equal sizes and
// are combined element by element. Tensors are combined name by name, for the
// names that both maps have.
Values Minus(const Values& a, const Values& b);
Values PlusTimes(const Values& a, double factor, const Values& b);
Tensors Minus(const Tensors& a, const Tensors& b);
Tensors PlusTimes(const Tensors& a, double factor, const Tensors& b);
Tensors Times(double factor, const Tensors& a);

// Returns the mean of the terms with these weights, for the tensors that all
// terms have.
Tensors WeightedMean(std::span<const double> weights,
                     std::span<const Tensors> terms);

// Returns one unit in the last place of a number as large as |value| with
// `digits` binary digits (24 for float32, 8 for bfloat16); 0 for 0.
double UnitInLastPlace(double value, int digits);

// Returns the names of the weights: layer by layer in the forward pass, then
// the tensors in no layer.
std::vector<std::string> NamesInOrder(const CheckCase& check);

// Returns a name with its layer, such as "W2 (the second convolution)"; the
// name alone if it is in no layer.
std::string WithLayer(const CheckCase& check, const std::string& name);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CASES_CHECK_CASE_H_
