#include "models/train/rank_steps.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "models/model.h"
#include "models/train/data_parallel.h"

namespace lockstep {

absl::Status ModelSteps::Begin() {
  Parameters& parameters = model_.parameters();
  LOCKSTEP_ASSIGN_OR_RETURN(warning_,
                            PlaceGradientsInGroup(communicator_, parameters));
  LOCKSTEP_RETURN_IF_ERROR(BroadcastParameters(communicator_, parameters));
  LOCKSTEP_RETURN_IF_ERROR(BroadcastBuffers());
  LOCKSTEP_RETURN_IF_ERROR(BroadcastOptimizer(communicator_, optimizer_));
  reducer_ = std::make_unique<GradientReducer>(
      communicator_, parameters, bucket_bytes_,
      /*overlaps=*/!model_.announces_gradients_at_end());
  return absl::OkStatus();
}

absl::StatusOr<StepResult> ModelSteps::Step(const Batch& shard,
                                            int64_t global_samples,
                                            float learning_rate,
                                            bool /*with_metrics*/) {
  return TrainStep(model_, *reducer_, shard, global_samples, learning_rate,
                   &optimizer_);
}

absl::StatusOr<Metrics> ModelSteps::Evaluate(const Batch& batch) {
  return model_.Evaluate(batch);
}

absl::Status ModelSteps::BroadcastBuffers() {
  return lockstep::BroadcastBuffers(communicator_, model_.buffers());
}

absl::Status ModelSteps::Read(Parameters& parameters, Buffers& buffers) {
  std::ranges::copy(model_.parameters().values(), parameters.values().begin());
  std::ranges::copy(model_.buffers().floats(), buffers.floats().begin());
  std::ranges::copy(model_.buffers().counters(), buffers.counters().begin());
  return absl::OkStatus();
}

absl::Status ModelSteps::Write(const Parameters& parameters,
                               const Buffers& buffers) {
  std::ranges::copy(parameters.values(), model_.parameters().values().begin());
  std::ranges::copy(buffers.floats(), model_.buffers().floats().begin());
  std::ranges::copy(buffers.counters(), model_.buffers().counters().begin());
  return absl::OkStatus();
}

}  // namespace lockstep
