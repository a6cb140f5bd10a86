// What a batch norm layer works on, for tests.
#ifndef LOCKSTEP_SYNCBN_CPU_TEST_LAYER_STEP_H_
#define LOCKSTEP_SYNCBN_CPU_TEST_LAYER_STEP_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_options.h"
#include "syncbn/cpu/test_activations.h"

namespace lockstep {

// How a layer is called.
struct LayerCall {
  bool training = true;
  bool relu = false;
  bool residual = false;
};

// One float layer's memory, forward and backward: activations, parameters and
// running statistics that are not zero, and outputs that are a pattern.
struct LayerStep {
  LayerStep(const BatchNormOptions& options, const ActivationShape& shape,
            DataType type)
      : options(options),
        x(shape, type, /*seed=*/1, /*center=*/0.25),
        residual(shape, type, /*seed=*/2, /*center=*/0),
        dy(shape, type, /*seed=*/3, /*center=*/0.1),
        y(shape, type),
        dx(shape, type),
        dresidual(shape, type),
        weight(TestParameters(Affine(), DataType::kFloat32, 4, 0.5, 1.5)),
        bias(TestParameters(Affine(), DataType::kFloat32, 5, -0.5, 0.5)),
        dweight(Affine(), DataType::kFloat32),
        dbias(Affine(), DataType::kFloat32),
        mean(TestParameters(Tracked(), DataType::kFloat32, 6, 0, 1)),
        variance(TestParameters(Tracked(), DataType::kFloat32, 7, 0.5, 1)),
        saved(shape.c, type) {}

  int64_t Affine() const { return options.affine ? options.channels : 0; }
  int64_t Tracked() const {
    return options.track_running_stats ? options.channels : 0;
  }
  Buffer SavedBuffer() {
    return {saved.data(), saved.layout().size_bytes(), DataType::kUInt8};
  }

  BatchNorm::Forwards ForwardsOf(const LayerCall& call) {
    BatchNorm::Forwards forwards;
    forwards.shape = x.shape;
    forwards.training = call.training;
    forwards.relu = call.relu;
    forwards.x = x.array.buffer();
    if (call.residual) forwards.residual = residual.array.buffer();
    forwards.weight = weight.buffer();
    forwards.bias = bias.buffer();
    if (options.track_running_stats) {
      forwards.running = {mean.buffer(), variance.buffer(), &batches};
    }
    forwards.y = y.array.buffer();
    forwards.saved = SavedBuffer();
    return forwards;
  }

  BatchNorm::Backwards BackwardsOf(const LayerCall& call) {
    BatchNorm::Backwards backwards;
    backwards.shape = x.shape;
    backwards.training = call.training;
    backwards.relu = call.relu;
    backwards.x = x.array.buffer();
    backwards.y = y.array.buffer();
    backwards.dy = dy.array.buffer();
    backwards.weight = weight.buffer();
    backwards.saved = SavedBuffer();
    backwards.dweight = dweight.buffer();
    backwards.dbias = dbias.buffer();
    backwards.dx = dx.array.buffer();
    if (call.residual) backwards.dresidual = dresidual.array.buffer();
    return backwards;
  }

  absl::Status Run(BatchNorm& norm, const LayerCall& call) {
    absl::Status status = norm.Forward(ForwardsOf(call));
    if (!status.ok()) return status;
    int ready = 0;
    status = norm.Backward(BackwardsOf(call), [&] { ++ready; });
    if (status.ok() && ready != 1) {
      return absl::InternalError("gradients_ready not called once");
    }
    return status;
  }

  BatchNormOptions options;
  TestActivations x, residual, dy, y, dx, dresidual;
  GuardedArray weight, bias, dweight, dbias, mean, variance;
  TestRecord saved;
  int64_t batches = 3;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_TEST_LAYER_STEP_H_
