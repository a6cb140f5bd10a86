// What the frameworks mean by batch normalisation, where they differ.
#ifndef LOCKSTEP_SYNCBN_BATCH_NORM_SEMANTICS_H_
#define LOCKSTEP_SYNCBN_BATCH_NORM_SEMANTICS_H_

#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

// A profile. One implementation reads it: nothing else tells the profiles
// apart.
struct BatchNormSemantics {
  // What `momentum` is the weight of when a batch enters a running statistic.
  enum class MomentumOf {
    kBatch,    // running = (1 - momentum) * running + momentum * batch.
    kRunning,  // running = momentum * running + (1 - momentum) * batch.
  };

  absl::string_view name;
  MomentumOf momentum_of = MomentumOf::kBatch;
  double default_momentum = 0;
  // Whether the variance that enters the running variance is M2 / (n - 1) over
  // the global n, or M2 / n. Normalising always divides by n.
  bool unbiased_running_variance = false;
  // Whether normalising one value per channel, over all ranks, with its own
  // statistics is an error; else its variance is 0.
  bool refuses_one_value = false;
};

// torch.nn.BatchNorm2d and SyncBatchNorm.
inline constexpr BatchNormSemantics kTorchBatchNorm = {
    .name = "torch",
    .momentum_of = BatchNormSemantics::MomentumOf::kBatch,
    .default_momentum = 0.1,
    .unbiased_running_variance = true,
    .refuses_one_value = true};

// paddle.nn.BatchNorm2D and SyncBatchNorm, but for Paddle's mean of the ranks'
// means: ranks are weighted by their counts here.
inline constexpr BatchNormSemantics kPaddleBatchNorm = {
    .name = "paddle",
    .momentum_of = BatchNormSemantics::MomentumOf::kRunning,
    .default_momentum = 0.9,
    .unbiased_running_variance = false,
    .refuses_one_value = false};

inline constexpr BatchNormSemantics kAllBatchNormSemantics[] = {
    kTorchBatchNorm, kPaddleBatchNorm};

// The profile of that name.
std::optional<BatchNormSemantics> ParseBatchNormSemantics(
    absl::string_view name);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_BATCH_NORM_SEMANTICS_H_
