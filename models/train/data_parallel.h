// Data-parallel training steps. Parameters are the same on every rank.
// Gradients are those of the global mean loss, summed over the ranks while
// backward runs.
#ifndef LOCKSTEP_MODELS_TRAIN_DATA_PARALLEL_H_
#define LOCKSTEP_MODELS_TRAIN_DATA_PARALLEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/async_communicator.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "models/optimizer.h"
#include "models/train/gradient_buckets.h"

namespace lockstep {

// Copies rank 0's parameter values to every rank.
absl::Status BroadcastParameters(Communicator& communicator,
                                 Parameters& parameters);

// Copies rank 0's state of the optimizer to every rank. All ranks have the same
// options and numbers of parameters. Sends no message if there is no state.
absl::Status BroadcastOptimizer(Communicator& communicator,
                                Optimizer& optimizer);

// Moves the gradients to memory of the group (Communicator::Allocate). Ranks of
// one host read this memory directly from one another: all-reduces of buckets
// of 256 KiB then take a third of the time. With one rank, or if the group has
// no memory for them, the gradients stay in their old memory on every rank.
// Their values are not copied. Call this function before a GradientReducer
// takes the gradients. The memory may outlive the group.
//
// If the group refused the memory, returns a warning for the user: how many
// bytes, why, and what it costs. Otherwise returns "". The result is the same
// on every rank. Errors: those of the communicator except kResourceExhausted.
absl::StatusOr<std::string> PlaceGradientsInGroup(Communicator& communicator,
                                                  Parameters& parameters);

// Copies rank 0's buffers to every rank, as PyTorch's DistributedDataParallel
// does. If ranks normalise with statistics of their own batches, rank 0's
// running statistics are the ones that count. The sizes must match on all
// ranks. Sends one message with the bytes of all buffers; no message with one
// rank or without buffers.
absl::Status BroadcastBuffers(Communicator& communicator, Buffers& buffers);

// Converts the model to batch norm over all ranks of `communicator`
// (Model::ConvertSyncBatchNorm). Batch norm's messages get a group of their
// own, because a GradientReducer uses the communicator while backward waits for
// these messages. Returns that group, which the model borrows.
//
// After an error, destroy that group before the reducer: declare it after the
// reducer. Other ranks that wait for this rank in that group then continue. The
// reducer's destructor waits for the sums that it has started, and receives
// those ranks' part of the sums or their error.
//
// Errors: kInvalidArgument if the model has no batch norm; the communicator's.
absl::StatusOr<std::unique_ptr<Communicator>> SynchroniseBatchNorm(
    Communicator& communicator, Model& model);

// Returns the sum of every rank's metrics, the same on every rank. Losses are
// summed in float64, counts in int64. Errors: the communicator's.
absl::StatusOr<Metrics> AllReduceMetrics(Communicator& communicator,
                                         const Metrics& metrics);

// Sums one replica's gradients over all ranks, in buckets
// (gradient_buckets.h). A bucket is sent as soon as it is complete. Its
// all-reduce therefore runs while backward computes the gradients of the next
// buckets.
//
// Every element is added in the same order (UniformAllReduce). The sums
// therefore have the same bits on every run and with buckets of any size; over
// NCCL, with buckets of the same size.
//
// With one rank the reducer sends nothing and starts no thread. It borrows its
// arguments. It uses the communicator only between the first MarkReady of a
// step and the return of Finish. Not thread safe.
//
// If all gradients become final only at the end of backward, nothing can
// overlap. Finish then sums them on the caller's thread, so no rank waits for
// another thread to get a core.
class GradientReducer {
 public:
  // Returns a sixteenth of the gradients' bytes, so that the first sums begin
  // early, clamped to [256 KiB, 1 MiB]. Smaller buckets would cost more, since
  // ranks have to meet for each sum. Larger ones would not stay in a core's
  // cache while they are summed.
  static int64_t DefaultBucketBytes(const Parameters& parameters);

  // bucket_bytes: at least 1, which gives each parameter a bucket of its own; 0
  // means the default. overlaps: whether sums run while backward computes.
  GradientReducer(Communicator& communicator, Parameters& parameters,
                  int64_t bucket_bytes = 0, bool overlaps = true);

  // Marks parameter `index`'s gradient as final for this step. The gradient
  // must not be touched until Finish. index in [0, parameters.count()).
  void MarkReady(int index);

  // Called with gradients [begin, end) of Parameters::gradients once they are
  // summed.
  using Summed = absl::FunctionRef<void(int64_t begin, int64_t end)>;

  // Blocks until every bucket is summed, and begins the next step. Calls
  // `summed` for each bucket in the order of sending, while later buckets are
  // still being summed. Errors: kFailedPrecondition, before any call of
  // `summed`, if some gradient was not marked exactly once; the communicator's,
  // after the calls for the buckets that were summed. After an error all other
  // gradients are unspecified.
  absl::Status Finish(Summed summed = [](int64_t, int64_t) {});

  int bucket_count() const { return buckets_.count(); }

 private:
  absl::Status Sum(int bucket);

  Parameters& parameters_;
  GradientBuckets buckets_;
  // The sums of this step that were started, by bucket.
  std::vector<PendingCollective> sums_;
  // One of the two sums the buckets. Both are null with one rank.
  Communicator* direct_ = nullptr;
  std::unique_ptr<AsyncCommunicator> async_;
};

// The time that one step took on this rank, by activity.
struct StepTimes {
  // Forward, backward and update; with SyncBatchNorm also its messages.
  absl::Duration compute;
  absl::Duration exposed_communication;  // Waiting for sums after backward.
  absl::Duration data_wait;              // Waiting for the batch.
};

struct StepResult {
  Metrics metrics;  // Of this rank's shard.
  // The steps in float16 that changed no parameter, because a gradient was not
  // finite. The same on every rank.
  int64_t skipped_steps = 0;
  StepTimes times;  // Without data_wait, which happens before the step.
  // On a GPU: the times of each step that `times` adds up, in order, by the
  // GPU's clock; otherwise empty. data_wait is the GPU's time from the end of
  // the step before until the step begins: for the host, and for the copy of
  // the batch. So a step takes the sum of its times. In the first step, and in
  // the first one after an evaluation, data_wait is 0.
  std::vector<StepTimes> gpu_steps = {};
};

// Takes one step of the optimizer on a global batch. `shard` is this rank's
// part of the batch and may be empty. Every rank computes the gradient of
// (1/global_samples) * sum of its losses. The sum over the ranks is the
// gradient of the global mean loss, even if the shards differ in size. Every
// rank then updates its values by the same bits, bucket by bucket as they are
// summed. optimizer: of the model's parameters; null means plain SGD. Errors:
// kInvalidArgument if global_samples < 1; the model's; the reducer's, after
// which some values may already be updated.
absl::StatusOr<StepResult> TrainStep(Model& model, GradientReducer& reducer,
                                     const Batch& shard, int64_t global_samples,
                                     float learning_rate,
                                     Optimizer* optimizer = nullptr);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_DATA_PARALLEL_H_
