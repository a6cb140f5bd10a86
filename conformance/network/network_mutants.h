// Mutants of ResNet-18's data-parallel training with batch norm.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_

#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "conformance/mutant.h"
#include "conformance/network/network_run.h"
#include "models/model.h"

namespace lockstep {

using Ready = Model::GradientReady;

// A training step done by somebody else: in place of ForwardBackward of the
// model. norm_group: batch norm's group; null in a model that was not
// converted.
using NormStep = std::function<absl::StatusOr<Metrics>(
    Model&, Communicator* norm_group, const Batch&, float gradient_scale,
    Ready)>;

// Trains by the step that each rank is given here.
NetworkMutation Stepping(
    std::function<NormStep(const NetworkRun&, int rank)> step);

// A step after which `change` gets the running statistics from before and the
// model's buffers with those from after.
NetworkMutation ChangingBuffers(
    std::function<void(int rank, std::span<const float> before, Buffers&)>
        change);

// Says of all gradients that they are ready, the last first.
void ReadyAll(Model& model, Ready ready);

// The mutant with how it is planted: in `run`, where it must show. What the
// first of its checks says is the diagnosis. Rounding is measured on one rank
// without the mutation, once a process, or with it, if it is `everywhere`: bad
// arithmetic, which widens the tolerances. Cost: seconds. Errors: the
// product's, and kInternal if a check failed otherwise than by kDataLoss.
Mutant Planted(Mutant mutant, const NetworkRun& run,
               const NetworkMutation& mutation, bool everywhere = false);

// Those that are `everywhere`; all of them.
std::vector<Mutant> ArithmeticMutants();
MutantSuite NetworkMutants();

// A rank without samples leaves the model's step out, as one that has nothing
// to compute. No run of it ends well.
NetworkMutation SkipWhereEmpty();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
