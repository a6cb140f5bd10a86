// The checks behind "ResNet-18 with SyncBatchNorm on N ranks is one rank": what
// they compare with, what float32 rounding may do to it, and the causes that
// they name.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/checks.h"
#include "conformance/mutant.h"
#include "conformance/network/network_run.h"
#include "conformance/training_run.h"
#include "models/model.h"

namespace lockstep::conformance {

// One training step in float64 from float32 parameters and running statistics.
struct NetworkStep {
  double loss_sum = 0;
  std::vector<double> gradient;  // Of the mean loss.
  std::vector<double> running;   // After the step.
};

std::vector<double> Widened(std::span<const float> values);

// One rank's, on the whole batch.
NetworkStep ReferenceStep(std::span<const float> parameters,
                          std::span<const float> running,
                          const Samples& samples);

// The gradient if the ranks' mean losses were averaged without weights, of the
// batch dealt to them as `deal` says.
std::vector<double> MeanOfMeansGradient(std::span<const float> parameters,
                                        std::span<const float> running,
                                        const Samples& samples,
                                        std::span<const int64_t> deal);

// What ranks with local batch norm do with the same batch, dealt to them as
// `deal` says, and all the same running statistics before: the sum of their
// losses and gradients, and the running statistics that each of them has after.
struct LocalStep {
  double loss_sum = 0;
  std::vector<double> gradient;
  std::vector<std::vector<double>> running;  // By rank.
};
LocalStep LocalReferenceStep(std::span<const float> parameters,
                             std::span<const float> running,
                             const Samples& samples,
                             std::span<const int64_t> deal);

// The norm of each tensor's a - b; NaN if there is a NaN in it.
std::vector<double> TensorDistances(std::span<const ParameterSpec> specs,
                                    std::span<const float> a,
                                    std::span<const double> b);
std::vector<double> TensorNorms(std::span<const ParameterSpec> specs,
                                std::span<const double> a);

// How far from the reference, in norm, float32 comes: the furthest that the
// product on one rank is in this step, as it is and in four reference runs
// (training_run.h): with its channels in another order, images and kernels
// transposed, and the samples in another order, so that every sum, batch norm's
// included, adds its terms in another order.
struct Rounding {
  double loss_sum = 0;
  std::vector<double> gradients, running;  // By tensor.
};
absl::StatusOr<Rounding> MeasureRounding(Model& model,
                                         std::span<const float> parameters,
                                         std::span<const float> running,
                                         const Samples& samples,
                                         const NetworkStep& reference);

// By how much the ReLU inputs of this step stay clear of zero: the least, over
// the ReLUs, of the smallest |z| in float64 divided by the largest error that
// float32 makes in a z where sums are plain loops. Above one, every ReLU is on
// the same side in float32.
double Clearance(std::span<const float> parameters,
                 std::span<const float> running, const Samples& samples);

inline constexpr double kNetworkMomentum = 0.1;

// What of two ranks' moments differs first, "gradients: 0.weight"; empty if
// nothing does.
std::string DifferenceOfRanks(const RankMoment& a, const RankMoment& b);

// Ranks 0 and `rank` differ at that moment: "; ..." or "". Some ranks agree and
// not all; the running statistics of one batch norm alone differ; the gradients
// of every batch norm and nothing else.
std::string CauseOfDifference(const NetworkTrace& trace, size_t rank,
                              size_t moment);

// Causes in one step, beside the reference at the run's own parameters. Borrows
// all it is given.
class StepCauses {
 public:
  StepCauses(const NetworkRun& run, const NetworkTrace& trace, int step,
             const NetworkStep& want)
      : run_(run), trace_(trace), step_(step), want_(want) {}

  // A wrong gradient, of which this tensor is the first: "; ..." or "". It is
  // that of local batch norm; of a mean of means; a multiple.
  std::string OfGradient(const ParameterSpec& spec, std::span<const float> got);

  // A rank's wrong running statistic: "; ..." or "". It is what it was; the
  // batch has another weight; it is that of the rank's own batch. want: all of
  // them, as the rank should have them.
  std::string OfBuffer(const ParameterSpec& spec, int rank,
                       std::span<const float> before,
                       std::span<const float> after,
                       std::span<const double> want);

 private:
  const LocalStep& Local();
  bool IsMeanOfMeans(const std::vector<double>& gradient) const;

  const NetworkRun& run_;
  const NetworkTrace& trace_;
  const int step_;
  const NetworkStep& want_;
  std::optional<LocalStep> local_;
};

// The steps of RunNetwork on one rank with SyncBatchNorm, which is the same
// arithmetic as on N. N ranks go the same way up to rounding, so that what
// rounding does here is what it does there; and if the arithmetic is bad, bad
// here too, which is what the check Tolerances is there for.
struct OneRankPath {
  NetworkRun run;
  NetworkTrace trace;
  std::vector<NetworkStep> steps;
  std::vector<Rounding> rounding;
};

// mutation: also of the model that rounding is measured on, and so of every
// tolerance. Cost: about a second a step. Errors: the product's.
absl::StatusOr<OneRankPath> TakeOneRankPath(int steps,
                                            const Mutation& mutation = {});

// How many times the furthest of five float32 computations the ranks may be
// from the reference.
//
// To the sums that make a gradient, N ranks are one more order of additions: of
// the samples (by ranks) and, within a rank, of whatever blocks oneDNN and the
// kernels choose for a smaller batch. The distance of each order is a norm over
// a tensor of errors that add up at random; norms of such sums from the same
// terms differ by small factors. Orders can differ in quality too: adding n
// numbers one by one loses up to sqrt(n / b) times what adding blocks of b
// does, and of the sums here few have more than 4608 terms; 16 is that factor
// for b = 18, at or above the widths that vectorised code adds in.
//
// A false failure needs all five to be 16 times closer to the reference than
// the ranks are. For the only quantity that is one number, the loss, with
// errors normally distributed and alike, that is a probability of 6.4 * (0.8 /
// 16)^5 = 2e-6 a step; for a tensor of ten elements or more it is below 1e-40.
inline constexpr double kNetworkSpread = 16;

// How large a tolerance may be beside what it is of: a gradient's norm, the
// norm of what a batch adds to a running statistic, the loss. Rounding is
// measured on the product itself, so that a product whose arithmetic is bad
// widens its own tolerances; past these they would say nothing, and the check
// Tolerances fails.
inline constexpr double kMostOfGradient = 1e-3;
inline constexpr double kMostOfRunning = 1e-3;
inline constexpr double kMostOfLoss = 1e-4;

// What the checks say of a run.
struct NetworkVerdicts {
  // By name; all of them are there. kDataLoss with one line that names step,
  // tensor and what is wrong, or OK.
  std::map<std::string, absl::Status> checks;
  // The furthest that anything is from the reference, in units of its rounding;
  // at most kNetworkSpread if all pass.
  double furthest = 0;
  // The largest tolerance, in parts of what kMost... lets it be.
  double widest = 0;
};

inline constexpr const char* kNetworkChecks[] = {
    "Tolerances", "SameStart", "RanksAgree", "Updates",
    "Counts",     "Buffers",   "Gradients",  "Loss"};

//   Tolerances  every tolerance of the last three is small beside what it is of
//   SameStart   every rank starts with rank 0's parameters and buffers
//   RanksAgree  in every step the same bits of parameters, gradients, buffers
//   Updates     value becomes value - learning rate * gradient
//   Counts      num_batches_tracked goes up by one a step
//   Buffers     running statistics are one rank's on the global batch
//   Gradients   so are the gradients
//   Loss        so is the sum of the losses
//
// The last three compare with the float64 reference at the parameters and
// buffers that the run itself is at, within kNetworkSpread * rounding, tensor
// by tensor, in norm. So if all pass, the ranks' every step is one rank's.
// rounding: of each step.
NetworkVerdicts CheckNetwork(const NetworkRun& run,
                             std::span<const Rounding> rounding,
                             const NetworkTrace& trace);

// Mutants of ResNet-18's data-parallel training with batch norm, each planted
// where it must show. What the first of its checks says is the diagnosis.
// Rounding is measured on one rank without the mutation, once a process; or
// with it, where it is in the arithmetic of one rank too. Cost: seconds, at
// ResNet-18's own width.
MutantSuite NetworkMutants();

// A rank without samples leaves the model's step out, as one that has nothing
// to compute. No run of it ends well.
Mutation SkipWhereEmpty();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CHECKS_H_
