// The reference of a step of a network, the effect of float32 rounding on it,
// and its clearance from the kinks of its functions.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_ROUNDING_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_ROUNDING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/data_types.h"
#include "conformance/network/network_run.h"
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
  DataType type = DataType::kFloat32;  // Of activations in memory.
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
//
// If activations have 16 bits, it is the effect of their storage: the largest
// distance of float64 loops that round what is stored (StoredActivations), to
// the nearest and, twice, at random. The random passes keep the distance from
// being small by chance.
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

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_ROUNDING_H_
