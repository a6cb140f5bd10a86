// Data-parallel training steps: the same parameters on every rank, gradients of
// the global mean loss, summed over the ranks while backward still runs.
#ifndef LOCKSTEP_MODELS_TRAIN_DATA_PARALLEL_H_
#define LOCKSTEP_MODELS_TRAIN_DATA_PARALLEL_H_

#include <cstdint>
#include <memory>
#include <optional>
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

namespace lockstep {

// Plain stochastic gradient descent:
// values[i] -= learning_rate * gradients[i]. The product is rounded to float32
// and then the difference is: never fused, so that the bits do not depend on
// the machine or on the vector width.
//
// Host float32 spans of the same size (a precondition), 0 allowed; they do not
// overlap.
void SgdUpdate(std::span<float> values, std::span<const float> gradients,
               float learning_rate);

// Gives every rank rank 0's parameter values.
absl::Status BroadcastParameters(Communicator& communicator,
                                 Parameters& parameters);

// Gives the gradients a place in memory of the group (Communicator::Allocate),
// which ranks of one host reduce straight from one another: all-reduces of
// buckets of 256 KiB then take a third of the time. Where the group has no
// memory for them they stay where they are, on every rank; so they do with one
// rank. Their values do not move along. Before a GradientReducer takes them.
// The memory may outlive the group.
//
// Returns a warning for the user if the group refused the memory: how many
// bytes, why, and what it costs; else "". It is the same on every rank. Errors:
// the communicator's, but for kResourceExhausted.
absl::StatusOr<std::string> PlaceGradientsInGroup(Communicator& communicator,
                                                  Parameters& parameters);

// Gives every rank rank 0's buffers, as PyTorch's DistributedDataParallel does:
// where ranks normalise with statistics of their own batches, rank 0's running
// statistics are the ones that count. Sizes are the same on every rank. One
// message of all buffers' bytes; none with one rank or without buffers.
absl::Status BroadcastBuffers(Communicator& communicator, Buffers& buffers);

// Converts the model to batch norm over all ranks of `communicator`
// (Model::ConvertSyncBatchNorm). Batch norm's messages get a group of their
// own, since a GradientReducer uses the communicator while backward waits for
// them. Returns that group, which the model borrows.
//
// After an error, destroy that group before the reducer: declare it after the
// reducer. Ranks that wait for this one in that group then go on, so that the
// reducer, whose destructor waits for the sums that it has begun, gets their
// part of the sums or their error.
//
// Errors: kInvalidArgument if the model has no batch norm; the communicator's.
absl::StatusOr<std::unique_ptr<Communicator>> SynchroniseBatchNorm(
    Communicator& communicator, Model& model);

// The sum of every rank's metrics, the same on every rank: losses in float64,
// counts in int64. Errors: the communicator's.
absl::StatusOr<Metrics> AllReduceMetrics(Communicator& communicator,
                                         const Metrics& metrics);

// Sums one replica's gradients over all ranks, in buckets: runs of neighbouring
// parameters, the last parameters first, each closed once it holds
// `bucket_bytes`. A bucket is sent as soon as its gradients and those of every
// earlier bucket are final, so that its all-reduce runs while backward computes
// the ones before it. The order and the bounds of the buckets are fixed,
// whatever order the gradients come in, and every element is added in the same
// order (UniformAllReduce), so the sums have the same bits on every run and
// with buckets of any size; over NCCL, with buckets of the same size. With one
// rank there is nothing to send, and no thread. Borrows its arguments; uses the
// communicator only between the first MarkReady of a step and the return of
// Finish. Not thread safe.
//
// Where all gradients are final only once nothing is left to compute, there is
// nothing to overlap with: Finish then sums them on the caller's thread, and no
// rank waits for another thread to get its core.
class GradientReducer {
 public:
  // A sixteenth of the gradients, so that the first sums begin early, but from
  // 256 KiB, since each sum costs ranks a meeting, to 1 MiB, which stays in a
  // core's cache while it is summed.
  static int64_t DefaultBucketBytes(const Parameters& parameters);

  // bucket_bytes: at least 1, which gives each parameter a bucket of its own;
  // 0: the default. overlaps: whether sums run while backward computes.
  GradientReducer(Communicator& communicator, Parameters& parameters,
                  int64_t bucket_bytes = 0, bool overlaps = true);

  // Marks parameter `index`'s gradient as final for this step: it is not to be
  // touched until Finish. index in [0, parameters.count()).
  void MarkReady(int index);

  // Is told of gradients [begin, end) of Parameters::gradients once they are
  // summed.
  using Summed = absl::FunctionRef<void(int64_t begin, int64_t end)>;

  // Blocks until every bucket is summed, and begins the next step. Calls
  // `summed` for each bucket in the order of sending, while later ones are
  // still on their way. Errors: kFailedPrecondition if some gradient was not
  // marked exactly once, before any call; the communicator's, after those of
  // the buckets that are summed. The other gradients are then unspecified.
  absl::Status Finish(Summed summed = [](int64_t, int64_t) {});

  int bucket_count() const { return static_cast<int>(buckets_.size()); }

 private:
  struct Bucket {
    std::span<float> gradients;
    int parameters = 0;  // In this bucket.
    int missing = 0;     // Of them, not yet marked in this step.
    std::optional<PendingCollective> sum = std::nullopt;  // Once started.
  };

  void StartCompleteBuckets();
  absl::Status Sum(Bucket& bucket);
  absl::Status CheckMarks() const;
  void BeginStep();

  Parameters& parameters_;
  std::vector<Bucket> buckets_;  // In the order of sending.
  std::vector<int> bucket_of_;   // By parameter.
  std::vector<int> marks_;       // By parameter, in this step.
  size_t next_bucket_ = 0;       // The first that was not started.
  // One of the two sums the buckets. Both are null with one rank.
  Communicator* direct_ = nullptr;
  std::unique_ptr<AsyncCommunicator> async_;
};

// Where one step's time went on this rank.
struct StepTimes {
  // Forward, backward, update; with SyncBatchNorm also its messages.
  absl::Duration compute;
  absl::Duration exposed_communication;  // Waiting for sums after backward.
  absl::Duration data_wait;              // Gathering the batch.
};

struct StepResult {
  Metrics metrics;  // Of this rank's shard.
  StepTimes times;  // Without data_wait, which happens before the step.
};

// One step of SGD on the global batch of which `shard` is this rank's part
// (perhaps empty): every rank computes the gradient of
// (1/global_samples) * sum of its losses; their sum is the gradient of the
// global mean loss, also when the shards differ in size. Then every rank
// applies value -= learning_rate * gradient to the same bits, bucket by bucket
// as they are summed. Errors: kInvalidArgument if global_samples < 1; the
// model's; the reducer's, after which some values are of the next step.
absl::StatusOr<StepResult> TrainStep(Model& model, GradientReducer& reducer,
                                     const Batch& shard, int64_t global_samples,
                                     float learning_rate);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_DATA_PARALLEL_H_
