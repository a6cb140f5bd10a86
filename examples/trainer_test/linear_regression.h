// A user's own trainer: linear regression by gradient descent over the ranks of
// a group.
#ifndef LINEAR_REGRESSION_H_
#define LINEAR_REGRESSION_H_

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"

struct Sample {
  float x = 0;
  float y = 0;
};

// Sets `gradient` to the gradient of the mean of (w x - y)^2 over the samples
// of all ranks. `shard` holds this rank's samples, of any number.
absl::Status Gradient(lockstep::Communicator& group, float w,
                      std::span<const Sample> shard, float& gradient);

#endif  // LINEAR_REGRESSION_H_
