// A model's training step, done by somebody else: what bugs of batch norm in a
// step are planted with.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NORM_STEP_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NORM_STEP_H_

#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "conformance/network/network_run.h"
#include "models/buffers.h"
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

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NORM_STEP_H_
