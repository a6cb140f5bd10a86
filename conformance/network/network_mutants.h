// A model's training step, done by somebody else: what bugs of batch norm in a
// step are planted with.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_

#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "conformance/network/network_run.h"
#include "conformance/rejection.h"
#include "models/model.h"

namespace lockstep {

using Ready = Model::GradientReady;

// In place of ForwardBackward of the model. norm_group: batch norm's group;
// null in a model that was not converted.
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

// Planted bugs of data-parallel training with batch norm: each a mistake that
// somebody has made, put around the product's parts and never inside them.

struct NetworkMutant {
  std::string name;
  std::string bug;  // What is wrong, in a phrase.
  NetworkRun run;   // One in which it shows.
  NetworkMutation mutation;
  // The names of exactly the checks (CheckNetwork) that reject it.
  std::set<std::string> caught_by;
  // A check among them, and what it says.
  std::string check, says;
  // Whether the one rank that rounding is measured on has the bug too: bad
  // arithmetic, which widens the tolerances.
  bool everywhere = false;
};

std::vector<NetworkMutant> NetworkMutants();
// Those of them that are `everywhere`.
std::vector<NetworkMutant> ArithmeticMutants();

// A rank without samples leaves the model's step out, as one that has nothing
// to compute. No run of it ends well.
NetworkMutation SkipWhereEmpty();

// Plants bugs in the network's training and asks the checks.

// What the checks that reject it say of the mutant's run, in the order of
// NetworkCheckNames. Rounding is measured on one rank without the bug, once a
// process, or with it, if it is `everywhere`. Cost: seconds. Errors: the
// product's, and kInternal if a check failed otherwise than by kDataLoss.
absl::StatusOr<std::vector<Rejection>> PlantNetworkMutant(
    const NetworkMutant& mutant);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
