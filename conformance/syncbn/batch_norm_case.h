// The layers and batches that batch norm is tried on, the ranks' inputs and
// what must come of them, what is asked of it, and numbers as a layer's memory
// holds them.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CASE_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CASE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "conformance/mutant.h"
#include "syncbn/batch_norm.h"
#include "syncbn/testing/batch_norm_reference.h"

namespace lockstep::conformance {

// How many samples the ranks have.
enum class RankBatches {
  kEven,
  kUneven,
  kOneSample,  // Each rank has one.
  kEmptyRank,  // Uneven, and one rank has none.
  kOneInAll,   // One rank has one sample, the others have none.
  // One rank has 22 samples and the others 6, whose values drift by two
  // deviations from the first sample to the last.
  kLarge,
};

// The means of channels over their deviations.
enum class Offsets {
  kOrdinary,  // About 1.
  kFar,       // 1000: what E[x^2] - E[x]^2 cannot do. Of bfloat16 64, which is
              // what it can hold.
};

// What is fused with the layer.
enum class Fused {
  kNothing,
  kRelu,
  kResidual,
  kResidualRelu,
  kInPlace,  // kResidualRelu with y in the residual's place and dx in dy's.
};

// How batches enter running statistics.
enum class Tracking {
  kMomentum,    // Torch: 0.3. Paddle: 0.8.
  kCumulative,  // No momentum.
  kNone,        // Not at all; evaluation then uses a rank's own batch.
};

inline constexpr RankBatches kAllBatches[] = {
    RankBatches::kEven, RankBatches::kUneven, RankBatches::kOneSample,
    RankBatches::kEmptyRank};
inline constexpr DataType kActivationTypes[] = {
    DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16,
    DataType::kFloat64};

// A layer's values on every rank. It is trained twice, then evaluated.
struct BatchNormProblem {
  int world_size = 1;
  DataType type = DataType::kFloat32;
  RankBatches batches = RankBatches::kEven;
  Offsets offsets = Offsets::kOrdinary;
  int64_t channels = 1;
  int64_t hw = 1;
  bool affine = true;
  Fused fused = Fused::kNothing;
};

// What changes neither y nor gradients of training.
struct BatchNormVariant {
  Layout layout = Layout::kNchw;
  Tracking tracking = Tracking::kMomentum;
  BatchNormSemantics semantics = kTorchBatchNorm;
};

inline constexpr int kSteps = 3;
inline constexpr bool IsTraining(int step) { return step < 2; }

// "Even", "Uneven", ...: for the names of tests.
const char* Name(RankBatches batches);

bool HasRelu(Fused fused);
bool HasResidual(Fused fused);

// "P=2 float32 uneven [.., 64, 49] affine relu far".
std::string ToString(const BatchNormProblem& problem);
// "nhwc, paddle, cumulative".
std::string ToString(const BatchNormVariant& variant);

// Samples by rank. Steps deal the same sizes to the ranks in turn, so that
// another rank is the empty one.
std::vector<int64_t> BatchSizes(const BatchNormProblem& problem, int step);

// Epsilon is 0.05 where the layer is affine, large enough for its place in the
// formula to show in every type, and else 1e-5.
BatchNormOptions OptionsOf(const BatchNormProblem& problem,
                           const BatchNormVariant& variant);

// C in {1, 3, 63, 64, 65, 2048} x small and large H x W x affine x offsets,
// without fusion. A far offset has fewer pixels, as the mean's rounding, which
// grows with their number, would hide everything else; in 16 bits it has 15, as
// of fewer values all may round to the same.
std::vector<BatchNormProblem> ProblemsOf(int world_size, DataType type,
                                         RankBatches batches);

// Every fusion x C in {3, 64} x small and large H x W x affine.
std::vector<BatchNormProblem> FusedProblemsOf(int world_size, DataType type,
                                              RankBatches batches);

// One value per channel on one of the ranks: refused on all of them, or
// accepted on all.
std::vector<BatchNormProblem> OneValueProblems(int world_size);

// On two ranks; of activations so large that the CPU's kernels cut each layout
// into several segments; the second writes 4 MiB of float32 past the caches.
std::vector<BatchNormProblem> LargeProblems();

// Problems of one kind, which a test tries as one case.
struct MatrixPart {
  int world_size;
  DataType type;
  RankBatches batches;
};
// With every one of kAllBatches.
std::vector<MatrixPart> PartsOf(std::span<const int> world_sizes,
                                std::span<const DataType> types);
// "P2_float32_Even".
std::string ToString(const MatrixPart& part);

// Whether the last value of each channel of each sample is 16 deviations off,
// so that a kernel cannot leave it out unseen: in the cases of 529 and 1031
// pixels, which are no whole vectors. Where statistics are float32 only of up
// to 10,000 values per channel: of more, rounding may do as much as one value
// does.
bool IsSpiked(const BatchNormProblem& problem);

// The layouts that activations of so many channels can have: two, or all three.
std::vector<Layout> LayoutsOf(int64_t channels);

// The problem's layouts x two profiles x three ways to track.
std::vector<BatchNormVariant> AllVariants(const BatchNormProblem& problem);
// The problem's layouts.
std::vector<BatchNormVariant> LayoutVariants(const BatchNormProblem& problem);

// Elements of `type`, each rounded to it.
std::string Encode(DataType type, std::span<const double> values);
std::vector<double> Decode(DataType type, absl::string_view bytes);

// Random bits of a key: the same on every machine.
uint64_t Hash(uint64_t key);
// In [-1, 1).
double Uniform(uint64_t key);

// Bytes of one rank's inputs in one layout.
struct EncodedBatch {
  std::string x;
  std::string residual;  // Empty: none.
  std::string dy;
};

// One call of Forward and Backward on every rank.
struct SolvedStep {
  bool training = true;
  std::vector<ReferenceBatch> ranks;
  // For each layout of the problem, by rank.
  std::map<Layout, std::vector<EncodedBatch>> inputs;
  const EncodedBatch& InputsOf(Layout layout, int rank) const {
    return inputs.at(layout)[static_cast<size_t>(rank)];
  }
  // What a layer that tracks is given in evaluation: [c].
  std::vector<double> running_mean;
  std::vector<double> running_variance;

  // In training of all ranks; in evaluation the running statistics.
  ReferenceStatistics statistics;
  ReferenceResult want;
  // In evaluation: of a layer that does not track, each rank's own batch alone.
  std::vector<ReferenceStatistics> own_statistics;
  std::vector<ReferenceResult> own_want;
};

struct SolvedProblem {
  BatchNormProblem problem;
  ReferenceLayer layer;
  Precision precision;
  DataType statistics_type = DataType::kFloat32;
  // What the running statistics start with: [c].
  std::vector<double> first_mean;
  std::vector<double> first_variance;
  std::vector<SolvedStep> steps;  // kSteps of them.

  ActivationShape ShapeOf(int step, int rank, Layout layout) const;
};

// Inputs: channel c of rank r is normal-like about a mean and with a deviation
// of its own, moved by another step on each rank, so that a rank's statistics
// are not the batch's; with a spike or a drift where the problem says so.
// Upstream gradients are random, with a mean and a part that follows x, so that
// neither dx nor the gradients of the parameters vanish. They are 0 where
// rounding decides whether ReLU lets them through.
SolvedProblem SolveProblem(const BatchNormProblem& problem);

// Whether the reference says something of every channel: a bound on y is at
// most half of the channel's deviation, or of the value's distance from the
// mean where that is more; bounds on dx and dweight are at most a quarter of
// what these are made of. And of the channels no more than a third has dx or a
// parameter's gradient near zero, by chance; those that ReLU closes have none,
// but they are not all. Error: kInternal, saying which. Nothing is asked of
// less than four values per channel, whose dx vanishes.
absl::Status CheckMeaning(const SolvedProblem& solved);

// What is asked of batch norm, in this order: the names that a failure may
// have.
inline constexpr const char* kBatchNormChecks[] = {
    "Status",        "Untouched",        "Ready",
    "Output",        "RunningMean",      "RunningVariance",
    "BatchCount",    "BiasGradient",     "WeightGradient",
    "InputGradient", "ResidualGradient", "RanksAgree",
    "SameBits"};
using BatchNormCheck = NameIn<kBatchNormChecks>;

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CASE_H_
