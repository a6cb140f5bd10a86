#include "linear_regression.h"

absl::Status Gradient(lockstep::Communicator& group, float w,
                      std::span<const Sample> shard, float& gradient) {
  // The sums of all ranks are divided by the count of all ranks. A mean of the
  // ranks' means would weigh samples by the number of samples on their rank.
  float sum_and_count[2] = {0, static_cast<float>(shard.size())};
  for (const Sample& sample : shard) {
    sum_and_count[0] += 2 * (w * sample.x - sample.y) * sample.x;
  }
  absl::Status status = group.AllReduce(std::span<float>(sum_and_count));
  gradient = sum_and_count[0] / sum_and_count[1];
  return status;
}
