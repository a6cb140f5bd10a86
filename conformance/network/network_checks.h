// The checks behind the claim "a network, with SyncBatchNorm where it has batch
// norm, on N ranks is one rank".
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CHECKS_H_

#include <map>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/training/trace.h"

namespace lockstep::conformance {

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

// The same for activations in 16 bits, as a multiple of the effect of their
// storage.
//
// The product rounds the same numbers as the loops. Its float32 sums differ
// from float64, which sends a few numbers to their other neighbour. In a deep
// network these change so many sums after them that all roundings are others in
// the end. The distance from float64 then has the loops' distribution, and is
// another sample of it. A false failure requires a sample that is 4 times the
// largest of three. For a tensor of ten elements whose errors are normally
// distributed, the probability is below 1e-6. Ranks also round their parts of a
// convolution's gradient each, before these are added.
//
// These tolerances are wide: of the tested networks at most a tenth of a
// gradient for the transformer, and half of it for LeNet with batch norm. In
// ResNet-18 the whole gradient of some batch norms may be lost.
inline constexpr double kStorageSpread = 4;
inline double SpreadOf(DataType type) {
  return type == DataType::kFloat32 ? kNetworkSpread : kStorageSpread;
}

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
  // rounding. At most SpreadOf the run's type if all checks pass.
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
// and buffers, within SpreadOf(type) * rounding, tensor by tensor, in norm. If
// all checks pass, every step of the ranks is therefore one rank's.
//
// If the statistics must be local, the last three require the step of ranks
// with local batch norm. RanksAgree then ignores the buffers, and Counts
// requires that a rank with an empty share counts no batch.
NetworkVerdicts CheckNetwork(
    const NetworkRun& run, const NetworkTrace& trace,
    BatchStatistics statistics = BatchStatistics::kGlobal);

// Checks the updates of every rank by plain SGD: a value becomes value -
// learning rate * gradient. All ranks must have as many steps. (A NetworkTrace
// has the values of rank 0 only.) Errors: as in NetworkVerdicts.
absl::Status CheckNetworkUpdates(const TestedNetwork& tested,
                                 std::span<const RankTrace> ranks);

// Returns the largest tolerance of a step, as a fraction of its limit
// kMostOf....
double WidestTolerance(const StepInput& in);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CHECKS_H_
