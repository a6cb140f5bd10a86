// The checks behind "a network, with SyncBatchNorm where it has batch norm, on
// N ranks is one rank": what they compare with, what float32 rounding may do to
// it, and the causes that they name.
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
#include "models/networks/network.h"
#include "models/reference/network_reference.h"

namespace lockstep::conformance {

// The samples whose statistics batch norm normalises with: the global batch, as
// with SyncBatchNorm and on one rank, or each rank's own share of it.
enum class BatchStatistics { kGlobal, kLocal };

// What a step starts from; borrowed.
struct StepInput {
  const TestedNetwork& tested;
  int step = 0;
  std::span<const float> parameters, running;
  const Samples& samples;   // The global batch.
  KeepMask keep = nullptr;  // Null: MaskOf(step).
  // Computes the step in place of the tested network, whose tensors it has.
  // Null: the tested network does.
  const Network* network = nullptr;
  // The shares of ranks with local batch norm, which all start from `running`,
  // in the batch's order. Empty: one rank has the whole batch.
  std::span<const int64_t> local_deal = {};
};

// Returns a step of a run, at the parameters and buffers that rank 0 is at.
StepInput InputOf(const NetworkRun& run, const NetworkTrace& trace, int step,
                  BatchStatistics statistics);

// One training step in float64.
struct NetworkStep {
  double loss_sum = 0;           // The whole batch's.
  std::vector<double> gradient;  // The gradient of the batch's mean loss.
  // The running statistics after the step: one rank's, or by rank with local
  // batch norm. A rank with an empty share keeps the statistics that it had.
  std::vector<std::vector<double>> running;

  const std::vector<double>& RunningOn(int rank) const {
    return running[running.size() == 1 ? 0 : rank];
  }
};

// Returns one rank's step on the whole batch, or the step of ranks with local
// batch norm, whose losses and gradients are summed.
NetworkStep ReferenceStep(const StepInput& in);

// The gradient if the ranks' mean losses were averaged without weights, of the
// batch dealt to them as `deal` says.
std::vector<double> MeanOfMeansGradient(const StepInput& in,
                                        std::span<const int64_t> deal);

// The gradient if backward forgot what comes back from one of two consumers of
// a value.
std::vector<double> LeftOutGradient(const StepInput& in,
                                    const Consumer& left_out);

// The norm of each tensor's a - b; NaN if there is a NaN in it.
std::vector<double> TensorDistances(std::span<const ParameterSpec> specs,
                                    std::span<const float> a,
                                    std::span<const double> b);
std::vector<double> TensorNorms(std::span<const ParameterSpec> specs,
                                std::span<const double> a);

// How far from the reference, in norm, float32 comes: the furthest that the
// same plain loops are in float32, with the batch as it is and reversed; loops
// of Winograd's, which round worse, where the tested network's are. With
// local batch norm each rank's share is reversed, and so is the order in which
// the ranks' gradients are added. The loss has the norm of the samples' errors.
struct Rounding {
  double loss_sum = 0;
  std::vector<double> gradients;  // By tensor.
  // By share, as NetworkStep has them, and then by tensor.
  std::vector<std::vector<double>> running;

  const std::vector<double>& RunningOn(int rank) const {
    return running[running.size() == 1 ? 0 : rank];
  }
};
Rounding MeasureRounding(const StepInput& in);

// The norm of the errors of samples' losses, which are as many in both.
double LossRounding(std::span<const float> rounded,
                    std::span<const double> exact);

// Both, of the few last steps that were asked for kept.
struct StepReference {
  NetworkStep want;
  Rounding rounding;
};
const StepReference& ReferenceOf(const StepInput& in);

// By how much what decides derivatives in this step, ReLU inputs and the lead
// of maxima, stays clear of zero: the least, over the layers, of the smallest
// |z| in float64 divided by the largest error that float32 makes in a z where
// sums are plain loops. Above one, every ReLU is on the same side in float32.
double Clearance(const StepInput& in);
// The smallest clearance that tests accept.
inline constexpr double kNetworkClearance = 4;

inline constexpr double kNetworkMomentum = 0.1;

// What of two ranks' moments differs first, "gradients: 0.weight"; empty if
// nothing does.
std::string DifferenceOfRanks(const TestedNetwork& tested, const RankMoment& a,
                              const RankMoment& b);

// Ranks 0 and `rank` differ at that moment: "; ..." or "". Some ranks agree and
// not all; the running statistics of one batch norm alone differ; the gradients
// of every batch norm, or of one layer, and nothing else.
std::string CauseOfDifference(const TestedNetwork& tested,
                              const NetworkTrace& trace, size_t rank,
                              size_t moment);

// Causes in one step, beside the reference at the run's own parameters. Borrows
// all it is given.
class StepCauses {
 public:
  StepCauses(const NetworkRun& run, const NetworkTrace& trace, int step,
             const NetworkStep& want,
             BatchStatistics statistics = BatchStatistics::kGlobal)
      : run_(run),
        step_(step),
        want_(want),
        statistics_(statistics),
        in_(InputOf(run, trace, step, statistics)) {}

  // A wrong gradient, of which this tensor is the first: "; ..." or "". A
  // tensor is zero; a head of an attention has none; all are those of local
  // batch norm (if that is expected, of SyncBatchNorm), of a mean of means, of
  // masks that each rank numbers for itself, of attention without its scale, of
  // bottlenecks with their stride in another convolution, of a backward pass
  // that forgets a shortcut; the tensor has bfloat16's bits; it is a multiple.
  std::string OfGradient(const ParameterSpec& spec, std::span<const float> got);

  // A rank's wrong running statistic: "; ..." or "". It is what it was; it is
  // that of the rank's own batch, or if that is expected, that of the global
  // batch or of another rank's share; the batch has another weight. want: all
  // of them, as the rank should have them.
  std::string OfBuffer(const ParameterSpec& spec, int rank,
                       std::span<const float> before,
                       std::span<const float> after,
                       std::span<const double> want);

 private:
  // Returns the step with the batch statistics that are not expected.
  const NetworkStep& Other();
  std::string OfOtherStatistics(const ParameterSpec& spec, int rank,
                                std::span<const float> after,
                                std::span<const double> want);

  // Whether `got` is nearer to the other gradient than that is to the right
  // one.
  bool Fits(std::span<const double> got, std::span<const double> other) const;
  bool IsMeanOfMeans(const std::vector<double>& gradient) const;
  bool IsOfLocalMasks(const std::vector<double>& gradient) const;
  // The cause if attention, a stride or a shortcut is wrong.
  std::string OfArchitecture(const std::vector<double>& gradient) const;
  std::string OfAttention(const std::vector<double>& gradient) const;
  bool IsOfStrideInFirst(const std::vector<double>& gradient) const;
  std::string OfShortcuts(const std::vector<double>& gradient) const;

  const NetworkRun& run_;
  const int step_;
  const NetworkStep& want_;
  const BatchStatistics statistics_;
  const StepInput in_;
  std::optional<NetworkStep> other_;
};

// How many times as far as float32 in plain loops (Rounding) the ranks may be
// from the reference.
//
// To the sums that make a gradient, the product and N ranks are further orders
// of additions: of the samples (by ranks) and, within a rank, of whatever
// blocks oneDNN and the kernels choose. The distance of each order is a norm
// over a tensor of errors that add up at random; norms of such sums from the
// same terms differ by small factors. Plain loops add n numbers one by one,
// which loses up to sqrt(n / b) times what adding blocks of b does, never less;
// but where n is small, so is the difference, and functions like exp have
// errors of their own there, a few units in the last place: 16 is for these.
//
// A false failure needs float32 in plain loops to be 16 times closer to the
// reference than the ranks are. For a tensor of ten elements whose errors are
// normally distributed and alike that has a probability below 1e-10; the loss
// has as many samples' errors.
inline constexpr double kNetworkSpread = 16;

// How large a tolerance may be beside what it is of: a gradient's norm, the
// norm of what a batch adds to a running statistic, the loss.
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
};

inline constexpr const char* kNetworkChecks[] = {
    "SameStart", "RanksAgree", "Updates", "Counts",
    "Buffers",   "Gradients",  "Loss"};

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
//
// If the statistics are to be local, the last three ask for the step of ranks
// with local batch norm; RanksAgree leaves the buffers out; and Counts asks
// that a rank with an empty share counts no batch.
NetworkVerdicts CheckNetwork(
    const NetworkRun& run, const NetworkTrace& trace,
    BatchStatistics statistics = BatchStatistics::kGlobal);

// The largest tolerance of a step, in parts of what kMost... lets it be.
double WidestTolerance(const StepInput& in);

// Mutants of networks' data-parallel training, each planted where it must show:
// with batch norm in ResNet-18, of attention, layer norm and masks in a vision
// transformer. What the first of its checks says is the diagnosis.
MutantSuite NetworkMutants();

// A rank without samples leaves the model's step out, as one that has nothing
// to compute. No run of it ends well.
Mutation SkipWhereEmpty();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CHECKS_H_
