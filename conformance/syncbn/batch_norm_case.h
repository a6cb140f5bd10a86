// The layers and batches that test batch norm. Also the names of the checks,
// and the encoding of numbers as a layer's memory holds them.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CASE_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CASE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "conformance/mutant.h"
#include "syncbn/batch_norm.h"

namespace lockstep::conformance {

// The number of samples on each rank.
enum class RankBatches {
  kEven,
  kUneven,
  kOneSample,         // Each rank has one sample.
  kEmptyRank,         // Uneven, and one rank has no samples.
  kOneSampleInTotal,  // One rank has one sample, the others have none.
  // One rank has 22 samples and the others have 6. The values drift by two
  // deviations from the first sample to the last.
  kLarge,
};

// The ratio of a channel's mean to its deviation.
enum class Offsets {
  kOrdinary,  // About 1.
  // 1000, where E[x^2] - E[x]^2 cancels. In bfloat16 64, the most that the type
  // can hold.
  kFar,
};

// The operations that are fused with the layer.
enum class Fused {
  kNothing,
  kRelu,
  kResidual,
  kResidualRelu,
  // kResidualRelu, where y overwrites the residual and dx overwrites dy.
  kInPlace,
};

// The way in which a batch enters the running statistics.
enum class Tracking {
  kMomentum,    // 0.3 for Torch, 0.8 for Paddle.
  kCumulative,  // No momentum.
  // The layer keeps no running statistics. Evaluation then uses each rank's own
  // batch.
  kNone,
};

inline constexpr RankBatches kAllBatches[] = {
    RankBatches::kEven, RankBatches::kUneven, RankBatches::kOneSample,
    RankBatches::kEmptyRank};
inline constexpr DataType kActivationTypes[] = {
    DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16,
    DataType::kFloat64};

// A layer's values on every rank. The layer is trained twice, then evaluated.
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

// The settings that change neither y nor the gradients of training.
struct BatchNormVariant {
  Layout layout = Layout::kNchw;
  Tracking tracking = Tracking::kMomentum;
  BatchNormSemantics semantics = kTorchBatchNorm;
};

inline constexpr int kSteps = 3;
inline constexpr bool IsTraining(int step) { return step < 2; }

// Returns "Even", "Uneven", ..., for the names of tests.
const char* Name(RankBatches batches);

bool HasRelu(Fused fused);
bool HasResidual(Fused fused);

// Returns, for example, "P=2 float32 uneven [.., 64, 49] affine relu far".
std::string ToString(const BatchNormProblem& problem);
// Returns, for example, "nhwc, paddle, cumulative".
std::string ToString(const BatchNormVariant& variant);

// Returns the number of samples by rank. Each step rotates the sizes by one
// rank, so that another rank is the empty one.
std::vector<int64_t> BatchSizes(const BatchNormProblem& problem, int step);

// Returns the layer's options. Epsilon is 0.05 if the layer is affine, which is
// large enough to show its place in the formula in every type. Otherwise
// epsilon is 1e-5.
BatchNormOptions OptionsOf(const BatchNormProblem& problem,
                           const BatchNormVariant& variant);

// Returns C in {1, 3, 63, 64, 65, 2048} x small and large H x W x affine x
// offsets, without fusion. A problem with far offsets has fewer pixels: the
// rounding of the mean grows with their number and would hide every other
// error. In 16 bits such a problem has 15 pixels, since fewer values may all
// round to the same number.
std::vector<BatchNormProblem> ProblemsOf(int world_size, DataType type,
                                         RankBatches batches);

// Returns every fusion x C in {3, 64} x small and large H x W x affine.
std::vector<BatchNormProblem> FusedProblemsOf(int world_size, DataType type,
                                              RankBatches batches);

// Returns problems with one value per channel on one of the ranks. All ranks
// must refuse such a batch, or all must accept it.
std::vector<BatchNormProblem> OneValueProblems(int world_size);

// Returns problems of two ranks. Their activations are so large that the CPU's
// kernels cut each layout into several segments. The second problem writes 4
// MiB of float32 past the caches.
std::vector<BatchNormProblem> LargeProblems();

// The problems of one kind, which a test tries as one case.
struct MatrixPart {
  int world_size;
  DataType type;
  RankBatches batches;
};
// Returns one part for each size and type with each of kAllBatches.
std::vector<MatrixPart> PartsOf(std::span<const int> world_sizes,
                                std::span<const DataType> types);
// Returns, for example, "P2_float32_Even".
std::string ToString(const MatrixPart& part);

// Whether the last value of each channel of each sample is 16 deviations off,
// so that the result shows if a kernel leaves this value out. True for the
// cases of 529 and 1031 pixels, which do not fill whole vectors. If statistics
// are float32, a channel may have at most 10,000 values: with more values,
// rounding may change the result by as much as one value does.
bool IsSpiked(const BatchNormProblem& problem);

// Returns the layouts that activations of so many channels can have: two, or
// all three.
std::vector<Layout> LayoutsOf(int64_t channels);

// Returns the problem's layouts x two profiles x three ways to track.
std::vector<BatchNormVariant> AllVariants(const BatchNormProblem& problem);
// Returns the problem's layouts, with default tracking and semantics.
std::vector<BatchNormVariant> LayoutVariants(const BatchNormProblem& problem);

// Returns elements of `type`, each value rounded to that type.
std::string Encode(DataType type, std::span<const double> values);
std::vector<double> Decode(DataType type, absl::string_view bytes);

// Returns random bits for a key, which are the same on every machine.
uint64_t Hash(uint64_t key);
// Returns a number in [-1, 1).
double Uniform(uint64_t key);

// The checks of batch norm, in the order in which they run. Each is a name that
// a failure may have.
inline constexpr const char* kBatchNormChecks[] = {
    "Status",        "Untouched",        "Ready",
    "Output",        "RunningMean",      "RunningVariance",
    "BatchCount",    "BiasGradient",     "WeightGradient",
    "InputGradient", "ResidualGradient", "RanksAgree",
    "SameBits"};
using BatchNormCheck = NameIn<kBatchNormChecks>;

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CASE_H_
