#include "models/train/data_parallel.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/async_communicator.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "models/optimizer.h"
#include "models/train/gradient_buckets.h"

namespace lockstep {

absl::Status BroadcastParameters(Communicator& communicator,
                                 Parameters& parameters) {
  return communicator.Broadcast(parameters.values(), /*root=*/0);
}

absl::Status BroadcastOptimizer(Communicator& communicator,
                                Optimizer& optimizer) {
  OptimizerState& state = optimizer.state();
  if (communicator.world_size() == 1 || state.arrays.empty()) {
    return absl::OkStatus();
  }
  for (std::vector<float>& array : state.arrays) {
    LOCKSTEP_RETURN_IF_ERROR(
        communicator.Broadcast(std::span(array), /*root=*/0));
  }
  return communicator.Broadcast(std::span(&state.steps, 1), /*root=*/0);
}

absl::StatusOr<std::string> PlaceGradientsInGroup(Communicator& communicator,
                                                  Parameters& parameters) {
  if (communicator.world_size() == 1) return "";
  const auto bytes =
      static_cast<int64_t>(std::as_bytes(parameters.gradients()).size());
  absl::StatusOr<GroupBuffer> memory = communicator.Allocate(bytes);
  // The group still works, and no rank has received memory.
  if (absl::IsResourceExhausted(memory.status())) {
    return absl::StrCat("the group has no memory for ", bytes,
                        " bytes of gradients on each rank (",
                        memory.status().message(),
                        "): they stay in ordinary memory, where all-reduce is "
                        "slower");
  }
  LOCKSTEP_RETURN_IF_ERROR(memory.status());
  const auto owner = std::make_shared<GroupBuffer>(*std::move(memory));
  parameters.PlaceGradients(owner->as<float>(), owner);
  return "";
}

absl::Status BroadcastBuffers(Communicator& communicator, Buffers& buffers) {
  if (communicator.world_size() == 1 || buffers.count() == 0) {
    return absl::OkStatus();
  }
  const auto floats = std::as_writable_bytes(buffers.floats());
  const auto counters = std::as_writable_bytes(buffers.counters());
  std::vector<std::byte> message(floats.begin(), floats.end());
  message.insert(message.end(), counters.begin(), counters.end());
  LOCKSTEP_RETURN_IF_ERROR(
      communicator.Broadcast(std::span(message), /*root=*/0));
  std::copy_n(message.begin(), floats.size(), floats.begin());
  std::copy(message.begin() + static_cast<int64_t>(floats.size()),
            message.end(), counters.begin());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> SynchroniseBatchNorm(
    Communicator& communicator, Model& model) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                            communicator.Split(/*color=*/0, /*key=*/0));
  if (model.ConvertSyncBatchNorm(*group) == 0) {
    return absl::InvalidArgumentError("the model has no batch norm");
  }
  return group;
}

absl::StatusOr<Metrics> AllReduceMetrics(Communicator& communicator,
                                         const Metrics& metrics) {
  double loss = metrics.loss_sum;
  int64_t counts[] = {metrics.correct, metrics.samples};
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(std::span<double>(&loss, 1)));
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(std::span<int64_t>(counts)));
  return Metrics{loss, counts[0], counts[1]};
}

int64_t GradientReducer::DefaultBucketBytes(const Parameters& parameters) {
  const auto bytes = static_cast<int64_t>(parameters.gradients().size_bytes());
  return std::clamp<int64_t>(bytes / 16, 256 << 10, 1 << 20);
}

GradientReducer::GradientReducer(Communicator& communicator,
                                 Parameters& parameters, int64_t bucket_bytes,
                                 bool overlaps)
    : parameters_(parameters),
      buckets_(parameters, bucket_bytes > 0 ? bucket_bytes
                                            : DefaultBucketBytes(parameters)) {
  if (communicator.world_size() == 1) return;
  if (overlaps) {
    async_ = std::make_unique<AsyncCommunicator>(communicator);
  } else {
    direct_ = &communicator;
  }
}

void GradientReducer::MarkReady(int index) {
  buckets_.MarkReady(index, [this](int bucket) {
    if (!async_) return;
    sums_.push_back(async_->Start(
        Collective::UniformAllReduce(buckets_.gradients(bucket))));
  });
}

absl::Status GradientReducer::Sum(int bucket) {
  if (direct_ != nullptr) {
    return direct_->Run(
        Collective::UniformAllReduce(buckets_.gradients(bucket)));
  }
  return async_ ? sums_[bucket].Wait() : absl::OkStatus();
}

absl::Status GradientReducer::Finish(Summed summed) {
  const absl::Status marks = buckets_.FinishStep();
  absl::Status status;
  for (int bucket = 0; bucket < buckets_.count(); ++bucket) {
    if (marks.ok()) status.Update(Sum(bucket));
    if (!marks.ok() || !status.ok()) break;
    const std::span<float> gradients = buckets_.gradients(bucket);
    const int64_t begin = gradients.data() - parameters_.gradients().data();
    summed(begin, begin + std::ssize(gradients));
  }
  if (async_) status.Update(async_->Wait());
  status.Update(marks);
  sums_.clear();
  return status;
}

absl::StatusOr<StepResult> TrainStep(Model& model, GradientReducer& reducer,
                                     const Batch& shard, int64_t global_samples,
                                     float learning_rate,
                                     Optimizer* optimizer) {
  if (global_samples < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a step needs at least 1 sample over all ranks, got ", global_samples));
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  StepResult result;
  LOCKSTEP_ASSIGN_OR_RETURN(
      result.metrics, model.ForwardBackward(
                          shard, 1.0f / static_cast<float>(global_samples),
                          [&reducer](int index) { reducer.MarkReady(index); }));
  const Clock::time_point backward_end = Clock::now();
  Parameters& parameters = model.parameters();
  Clock::duration update = {};
  if (optimizer != nullptr) optimizer->BeginStep(learning_rate);
  LOCKSTEP_RETURN_IF_ERROR(reducer.Finish([&](int64_t begin, int64_t end) {
    const Clock::time_point summed = Clock::now();
    const auto values = parameters.values().subspan(begin, end - begin);
    const auto gradients = parameters.gradients().subspan(begin, end - begin);
    if (optimizer == nullptr) {
      SgdUpdate(values, gradients, learning_rate);
    } else {
      optimizer->Update(begin, values, gradients);
    }
    update += Clock::now() - summed;
  }));
  result.times.compute = absl::FromChrono(backward_end - start + update);
  result.times.exposed_communication =
      absl::FromChrono(Clock::now() - backward_end - update);
  return result;
}

}  // namespace lockstep
