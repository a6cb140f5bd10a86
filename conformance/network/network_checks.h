// The checks behind the claim "a network, with SyncBatchNorm where it has batch
// norm, on N ranks is one rank". This header has their reference, the effect of
// float32 rounding on it, and the causes that the checks name.
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
#include "conformance/mutant.h"
#include "conformance/network/network_run.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/network_reference.h"

namespace lockstep::conformance {

// The samples whose statistics batch norm normalises with. kGlobal is the
// global batch, as with SyncBatchNorm and on one rank. kLocal is each rank's
// own share of it.
enum class BatchStatistics { kGlobal, kLocal };

// The input of a step. Borrows its fields.
struct StepInput {
  const TestedNetwork& tested;
  int step = 0;
  std::span<const float> parameters, running;
  const Samples& samples;   // The global batch.
  KeepMask keep = nullptr;  // Null: MaskOf(step).
  // A network that computes the step in place of the tested network, and has
  // the same tensors. Null: the tested network computes it.
  const Network* network = nullptr;
  // The shares of ranks with local batch norm, in the batch's order. All these
  // ranks start from `running`. Empty: one rank has the whole batch.
  std::span<const int64_t> local_deal = {};
};

// Returns a step of a run, at the parameters and buffers of rank 0.
StepInput InputOf(const NetworkRun& run, const NetworkTrace& trace, int step,
                  BatchStatistics statistics);

// The result of one training step in float64.
struct NetworkStep {
  double loss_sum = 0;           // The loss of the whole batch.
  std::vector<double> gradient;  // The gradient of the batch's mean loss.
  // The running statistics after the step. With local batch norm there is one
  // entry per rank, otherwise a single entry. A rank with an empty share keeps
  // its old statistics.
  std::vector<std::vector<double>> running;

  const std::vector<double>& RunningOn(int rank) const {
    return running[running.size() == 1 ? 0 : rank];
  }
};

// Returns one rank's step on the whole batch. With local batch norm, returns
// the step of the ranks, whose losses and gradients are summed.
NetworkStep ReferenceStep(const StepInput& in);

// Returns the gradient as if the ranks' mean losses were averaged without
// weights. `deal` is the number of the batch's samples on each rank.
std::vector<double> MeanOfMeansGradient(const StepInput& in,
                                        std::span<const int64_t> deal);

// Returns the gradient as if backward forgot the gradient from one of two
// consumers of a value.
std::vector<double> LeftOutGradient(const StepInput& in,
                                    const Consumer& left_out);

// Returns the norm of each tensor's a - b. The norm is NaN if a difference is.
std::vector<double> TensorDistances(std::span<const ParameterSpec> specs,
                                    std::span<const float> a,
                                    std::span<const double> b);
std::vector<double> TensorNorms(std::span<const ParameterSpec> specs,
                                std::span<const double> a);

// The distance of float32 from the reference, in norm: the largest distance of
// the same plain loops in float32, over the batch as it is and reversed. The
// loops use Winograd's algorithm, which rounds worse, wherever the tested
// network does. With local batch norm, each rank's share is reversed, and also
// the order in which the ranks' gradients are added. The loss has the norm of
// the samples' errors.
struct Rounding {
  double loss_sum = 0;
  std::vector<double> gradients;  // By tensor.
  // Indexed by share, as in NetworkStep, and then by tensor.
  std::vector<std::vector<double>> running;

  const std::vector<double>& RunningOn(int rank) const {
    return running[running.size() == 1 ? 0 : rank];
  }
};
Rounding MeasureRounding(const StepInput& in);

// Returns the norm of the errors of samples' losses. Both arguments must have
// the same size.
double LossRounding(std::span<const float> rounded,
                    std::span<const double> exact);

// The reference of a step.
struct StepReference {
  NetworkStep want;
  Rounding rounding;
};
// Returns the reference of a step. Caches the results of the last few steps.
const StepReference& ReferenceOf(const StepInput& in);

// Returns the clearance of a step: how far ReLU inputs and the leads of maxima,
// which decide derivatives, stay from zero. In each layer it is the smallest
// |z| in float64 divided by the largest error of a z in float32, with sums as
// plain loops. The result is the minimum over the layers. If it is above one,
// every ReLU is on the same side in float32.
double Clearance(const StepInput& in);
// The smallest clearance that tests accept.
inline constexpr double kNetworkClearance = 4;

inline constexpr double kNetworkMomentum = 0.1;

// Returns the first difference of two ranks' moments, for example "gradients:
// 0.weight". Empty if there is none.
std::string DifferenceOfRanks(const TestedNetwork& tested, const RankMoment& a,
                              const RankMoment& b);

// Returns "; ..." for the cause of a difference between ranks 0 and `rank` at
// that moment, or "". The causes: some ranks agree and not all; the running
// statistics of one batch norm alone differ; only the gradients of every batch
// norm, or of one layer, differ.
std::string CauseOfDifference(const TestedNetwork& tested,
                              const NetworkTrace& trace, size_t rank,
                              size_t moment);

// The causes of one wrong step, beside the reference at the run's own
// parameters. Borrows the constructor's arguments.
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

  // Returns "; ..." for the cause of a wrong gradient, or "". `spec` is the
  // first wrong tensor. The causes:
  //
  //   - the tensor is zero, or a head of an attention has no gradient;
  //   - all gradients are those of local batch norm, or of SyncBatchNorm
  //     where local batch norm is expected;
  //   - all are those of a mean of means, or of masks that each rank
  //     numbers for itself;
  //   - all are those of attention without its scale, of bottlenecks with their
  //     stride in another convolution, or of a backward pass that forgets a
  //     shortcut;
  //   - the tensor has bfloat16's bits, or is a multiple of the right one.
  std::string OfGradient(const ParameterSpec& spec, std::span<const float> got);

  // Returns "; ..." for the cause of a rank's wrong running statistic, or "".
  // The causes: it did not change, or has bfloat16's bits; it is that of the
  // rank's own batch, or, if this is expected, that of the global batch or of
  // another rank's share; the batch has another weight. want: all statistics
  // that the rank should have.
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

  // Whether `got` is much nearer to `other` than `other` is to the right
  // gradient.
  bool Fits(std::span<const double> got, std::span<const double> other) const;
  bool IsMeanOfMeans(const std::vector<double>& gradient) const;
  bool IsOfLocalMasks(const std::vector<double>& gradient) const;
  // Returns the cause if attention, a stride or a shortcut is wrong.
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

// The largest distance of the ranks from the reference, as a multiple of the
// distance of float32 in plain loops (Rounding).
//
// The product and N ranks add the terms of a gradient in other orders: of the
// samples (by ranks), and within a rank of the blocks that oneDNN and the
// kernels choose. The distance of each order is a norm over a tensor of errors
// that add up at random. Norms of such sums from the same terms differ by small
// factors. Plain loops add n numbers one by one. They lose up to sqrt(n / b)
// times as much as adding blocks of b, and never less. If n is small, the
// difference is also small, but functions like exp have errors of their own, a
// few units in the last place. The factor of 16 allows for these.
//
// A false failure requires that float32 in plain loops is 16 times closer to
// the reference than the ranks are. For a tensor of ten elements whose errors
// are normally distributed and alike, the probability is below 1e-10. The loss
// has as many samples' errors.
inline constexpr double kNetworkSpread = 16;

// The largest tolerance relative to its number: a gradient's norm, the norm of
// a batch's contribution to a running statistic, or the loss.
inline constexpr double kMostOfGradient = 1e-3;
inline constexpr double kMostOfRunning = 1e-3;
inline constexpr double kMostOfLoss = 1e-4;

// The results of the checks on a run.
struct NetworkVerdicts {
  // The result of every check, by name: OK, or kDataLoss with one line that
  // names the step, the tensor and the fault.
  std::map<std::string, absl::Status> checks;
  // The largest distance of any number from the reference, in units of its
  // rounding. At most kNetworkSpread if all checks pass.
  double furthest = 0;
};

inline constexpr const char* kNetworkChecks[] = {
    "SameStart", "RanksAgree", "Updates", "Counts",
    "Buffers",   "Gradients",  "Loss"};

// Checks a run:
//
//   SameStart   Every rank starts with rank 0's parameters and buffers.
//   RanksAgree  In every step, all ranks have the same bits of parameters,
//               gradients and buffers.
//   Updates     A value becomes value - learning rate * gradient.
//   Counts      num_batches_tracked grows by one per step.
//   Buffers     Running statistics are one rank's on the global batch.
//   Gradients   Gradients are one rank's on the global batch.
//   Loss        The sum of the losses is one rank's on the global batch.
//
// The last three compare with the float64 reference at the run's own parameters
// and buffers, within kNetworkSpread * rounding, tensor by tensor, in norm. If
// all checks pass, every step of the ranks is therefore one rank's.
//
// If the statistics must be local, the last three require the step of ranks
// with local batch norm. RanksAgree then ignores the buffers, and Counts
// requires that a rank with an empty share counts no batch.
NetworkVerdicts CheckNetwork(
    const NetworkRun& run, const NetworkTrace& trace,
    BatchStatistics statistics = BatchStatistics::kGlobal);

// Returns the largest tolerance of a step, as a fraction of its limit
// kMostOf....
double WidestTolerance(const StepInput& in);

// Returns mutants of networks' data-parallel training, each planted where it
// must show. Mutants of batch norm are planted in ResNet-18, those of
// attention, layer norm and masks in a vision transformer. The diagnosis is
// that of a mutant's first check.
MutantSuite NetworkMutants();

// Returns a mutation in which a rank without samples skips the model's step,
// because it has nothing to compute. No run with this mutation succeeds.
Mutation SkipWhereEmpty();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CHECKS_H_
