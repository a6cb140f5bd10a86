#include "models/train/gpu_rank_steps.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/watchdog.h"
#include "models/cuda/cuda_replica.h"
#include "models/cuda/loss_scale.h"
#include "models/cuda/precision.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/optimizer.h"
#include "models/train/data_parallel.h"
#include "models/train/device.h"
#include "models/train/gpu_steps.h"

namespace lockstep {
namespace {

// The steps on whole batches before the first that is captured: NCCL connects
// its ranks in its first calls.
constexpr int kEagerSteps = 2;

// Returns the time from one event to the next, both of which have ended.
absl::StatusOr<absl::Duration> Between(const Event& first,
                                       const Event& second) {
  float milliseconds = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventElapsedTime(&milliseconds, first.get(), second.get()),
                 "cudaEventElapsedTime"));
  return absl::Milliseconds(static_cast<double>(milliseconds));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuRankSteps>> GpuRankSteps::Create(
    Communicator& group, int device, const Network& network,
    const GpuStepsOptions& options, std::string& shared) {
  std::unique_ptr<GpuRankSteps> steps(
      new GpuRankSteps(group, device, options.graph_samples));
  LOCKSTEP_RETURN_IF_ERROR(
      ShareStatus(group, steps->Prepare(network, options)));
  if (group.world_size() > 1) {
    LOCKSTEP_RETURN_IF_ERROR(steps->JoinGroups(options, shared));
    if (!shared.empty()) return nullptr;
  }
  Communicator& gradients =
      steps->gradients_ == nullptr
          ? group
          : static_cast<Communicator&>(*steps->gradients_);
  LOCKSTEP_ASSIGN_OR_RETURN(
      steps->steps_,
      GpuSteps::Create(*steps->replica_, gradients,
                       {.compute = steps->compute_.get(),
                        .communication = steps->communication_.get()},
                       options.bucket_bytes > 0 ? options.bucket_bytes
                                                : GpuSteps::kBucketBytes));
  steps->graphs_ = std::make_unique<StepGraphs>(
      StepGraphs::Rank{.steps = steps->steps_.get(),
                       .replica = steps->replica_.get(),
                       .compute = steps->compute_.get(),
                       .gradients = steps->gradients_.get(),
                       .norms = steps->norms_.get()});
  return steps;
}

absl::Status GpuRankSteps::Prepare(const Network& network,
                                   const GpuStepsOptions& options) {
  if (options.sync_bn && network.Count<BatchNormOp>() == 0) {
    return absl::InvalidArgumentError("the model has no batch norm");
  }
  LOCKSTEP_RETURN_IF_ERROR(UseDevice());
  LOCKSTEP_RETURN_IF_ERROR(CreateStreams());
  LOCKSTEP_ASSIGN_OR_RETURN(
      replica_, CudaReplica::Create(network, compute_.get(),
                                    {.seed = options.seed,
                                     .precision = options.precision,
                                     .optimizer = options.optimizer}));
  scales_loss_ = options.precision == ConvolutionPrecision::kFloat16;
  // Batch norm needs two values.
  const int64_t samples = std::max<int64_t>(options.largest_shard, 2);
  for (Slot* const slot : {&slots_[0], &slots_[1], &slots_[2], &evaluation_}) {
    LOCKSTEP_RETURN_IF_ERROR(
        slot->batch.Reserve(samples, network.input_shape()));
  }
  LOCKSTEP_RETURN_IF_ERROR(WarmUp(samples));
  const int64_t shard = graph_samples_ / group_.world_size();
  return shard == 0 || shard == samples ? absl::OkStatus() : WarmUp(shard);
}

absl::Status GpuRankSteps::WarmUp(int64_t samples) {
  LOCKSTEP_RETURN_IF_ERROR(replica_->WarmUp(samples, slots_[0].batch));
  // The step has changed the buffers.
  return replica_->UploadBuffers(CreateBuffers(replica_->network()));
}

absl::Status GpuRankSteps::JoinGroups(const GpuStepsOptions& options,
                                      std::string& shared) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> control,
                            group_.Split(/*color=*/0, /*key=*/0));
  NcclOptions nccl;
  nccl.device = device_;
  nccl.stream = communication_.get();
  nccl.group.timeout = options.timeout;
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> gradients =
      NcclCommunicator::Create(std::move(control), nccl);
  if (absl::IsFailedPrecondition(gradients.status())) {
    shared = std::string(gradients.status().message());
    return absl::OkStatus();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(gradients_, std::move(gradients));
  if (!options.sync_bn) return absl::OkStatus();
  // A split, so that ranks which begin calls of both in other orders get an
  // error.
  LOCKSTEP_ASSIGN_OR_RETURN(
      norms_,
      gradients_->SplitOnStream(/*color=*/0, /*key=*/0, compute_.get()));
  replica_->ConvertSyncBatchNorm(*norms_);
  return absl::OkStatus();
}

absl::Status GpuRankSteps::CreateStreams() {
  LOCKSTEP_ASSIGN_OR_RETURN(compute_, MakeStream());
  LOCKSTEP_ASSIGN_OR_RETURN(communication_, MakeUrgentStream());
  LOCKSTEP_ASSIGN_OR_RETURN(copy_, MakeStream());
  LOCKSTEP_ASSIGN_OR_RETURN(evaluation_.copied, MakeEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(last_end_, MakeTimedEvent());
  for (Slot& slot : slots_) {
    LOCKSTEP_ASSIGN_OR_RETURN(slot.copied, MakeEvent());
    for (Event* const event :
         {&slot.begin, &slot.computed, &slot.summed, &slot.end}) {
      LOCKSTEP_ASSIGN_OR_RETURN(*event, MakeTimedEvent());
    }
  }
  return absl::OkStatus();
}

absl::Status GpuRankSteps::UseDevice() const {
  return CudaStatus(cudaSetDevice(device_), "cudaSetDevice");
}

absl::Status GpuRankSteps::Begin() {
  LOCKSTEP_RETURN_IF_ERROR(UseDevice());
  if (gradients_ != nullptr) {
    // Create and Write have waited for the values.
    LOCKSTEP_RETURN_IF_ERROR(
        gradients_->Broadcast(replica_->parameters().values(), /*root=*/0));
    for (const std::span<float> array : replica_->optimizer_arrays()) {
      LOCKSTEP_RETURN_IF_ERROR(gradients_->Broadcast(array, /*root=*/0));
    }
    LOCKSTEP_RETURN_IF_ERROR(
        gradients_->Broadcast(replica_->optimizer_steps(), /*root=*/0));
    LOCKSTEP_RETURN_IF_ERROR(gradients_->Wait());
  }
  return BroadcastBuffers();
}

absl::Status GpuRankSteps::BroadcastBuffers() {
  if (gradients_ == nullptr) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(UseDevice());
  Buffers& buffers = replica_->buffers();
  if (buffers.count() == 0) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(compute_.get()),
                                      "cudaStreamSynchronize"));
  LOCKSTEP_RETURN_IF_ERROR(gradients_->Broadcast(buffers.floats(), /*root=*/0));
  LOCKSTEP_RETURN_IF_ERROR(gradients_->Wait());
  return group_.Broadcast(buffers.counters(), /*root=*/0);
}

absl::StatusOr<DeviceBatch> GpuRankSteps::CopyTo(Slot& slot, const Batch& batch,
                                                 float learning_rate) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const DeviceBatch on_device,
      slot.batch.Enqueue(batch, learning_rate, copy_.get()));
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaEventRecord(slot.copied.get(), copy_.get()), "cudaEventRecord"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamWaitEvent(compute_.get(), slot.copied.get(), 0),
                 "cudaStreamWaitEvent"));
  return on_device;
}

absl::Status GpuRankSteps::Retire(Slot& slot) {
  if (!slot.is_used) return absl::OkStatus();
  slot.is_used = false;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventSynchronize(slot.end.get()), "cudaEventSynchronize"));
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::Duration forward_backward,
                            Between(slot.begin, slot.computed));
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::Duration exposed,
                            Between(slot.computed, slot.summed));
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::Duration update,
                            Between(slot.summed, slot.end));
  StepTimes times = {.compute = forward_backward + update,
                     .exposed_communication = exposed,
                     .data_wait = absl::ZeroDuration()};
  times_.compute += times.compute;
  times_.exposed_communication += times.exposed_communication;
  if (follows_step_) {
    LOCKSTEP_ASSIGN_OR_RETURN(times.data_wait, Between(last_end_, slot.begin));
  }
  step_times_.push_back(times);
  // The slot's next step records its end in the other event.
  std::swap(last_end_, slot.end);
  follows_step_ = true;
  return absl::OkStatus();
}

absl::Status GpuRankSteps::RetireAll() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    // The oldest step is in the slot that is used next.
    LOCKSTEP_RETURN_IF_ERROR(Retire(slots_[(next_slot_ + i) % slots_.size()]));
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> GpuRankSteps::Step(const Batch& shard,
                                              int64_t global_samples,
                                              float learning_rate,
                                              bool with_metrics) {
  LOCKSTEP_RETURN_IF_ERROR(UseDevice());
  Slot& slot = slots_[next_slot_++ % slots_.size()];
  LOCKSTEP_RETURN_IF_ERROR(Retire(slot));
  LOCKSTEP_ASSIGN_OR_RETURN(const DeviceBatch on_device,
                            CopyTo(slot, shard, learning_rate));
  const GpuStepEvents events = {.begin = slot.begin.get(),
                                .computed = slot.computed.get(),
                                .summed = slot.summed.get(),
                                .end = slot.end.get()};
  const bool whole = graph_samples_ > 0 && global_samples == graph_samples_;
  if (whole && whole_batches_ == kEagerSteps) {
    LOCKSTEP_RETURN_IF_ERROR(
        graphs_->Enqueue(on_device, global_samples, events));
  } else {
    whole_batches_ += whole;
    LOCKSTEP_RETURN_IF_ERROR(
        steps_->Enqueue(on_device, global_samples, events));
  }
  slot.is_used = has_steps_ = true;
  if (!with_metrics) return StepResult();
  LOCKSTEP_RETURN_IF_ERROR(RetireAll());
  StepResult result;
  LOCKSTEP_ASSIGN_OR_RETURN(result.metrics, replica_->TakeMetrics());
  result.metrics += std::exchange(untaken_, Metrics());
  if (scales_loss_) {
    LOCKSTEP_ASSIGN_OR_RETURN(const LossScale scale,
                              replica_->DownloadLossScale());
    result.skipped_steps =
        scale.skipped - std::exchange(skipped_steps_, scale.skipped);
  }
  result.times = std::exchange(times_, StepTimes());
  result.gpu_steps = std::exchange(step_times_, {});
  has_steps_ = false;
  // Other ranks' errors.
  for (const auto* const nccl : {&gradients_, &norms_}) {
    if (*nccl != nullptr) LOCKSTEP_RETURN_IF_ERROR((*nccl)->Wait());
  }
  return result;
}

absl::StatusOr<Metrics> GpuRankSteps::Evaluate(const Batch& batch) {
  LOCKSTEP_RETURN_IF_ERROR(UseDevice());
  LOCKSTEP_RETURN_IF_ERROR(RetireAll());
  follows_step_ = false;
  if (has_steps_) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics of_steps, replica_->TakeMetrics());
    untaken_ += of_steps;
    has_steps_ = false;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const DeviceBatch on_device,
                            CopyTo(evaluation_, batch, /*learning_rate=*/0));
  LOCKSTEP_RETURN_IF_ERROR(replica_->EnqueueEvaluation(on_device));
  return replica_->TakeMetrics();
}

absl::Status GpuRankSteps::Read(Parameters& parameters, Buffers& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(UseDevice());
  return replica_->Download(parameters, buffers);
}

absl::Status GpuRankSteps::Write(const Parameters& parameters,
                                 const Buffers& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(UseDevice());
  return replica_->Upload(parameters, buffers);
}

absl::StatusOr<OptimizerState> GpuRankSteps::ReadOptimizer() {
  LOCKSTEP_RETURN_IF_ERROR(UseDevice());
  return replica_->DownloadOptimizer();
}

absl::Status GpuRankSteps::WriteOptimizer(const OptimizerState& state) {
  LOCKSTEP_RETURN_IF_ERROR(UseDevice());
  return replica_->UploadOptimizer(state);
}

}  // namespace lockstep
