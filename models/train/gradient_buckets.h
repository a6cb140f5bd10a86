// The division of a model's gradients into buckets, which ranks sum one by one
// while backward runs.
#ifndef LOCKSTEP_MODELS_TRAIN_GRADIENT_BUCKETS_H_
#define LOCKSTEP_MODELS_TRAIN_GRADIENT_BUCKETS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "models/model.h"

namespace lockstep {

// A bucket is a run of neighbouring parameters, the last parameters first, and
// is closed once it holds `bucket_bytes`. It is complete once its gradients and
// those of every earlier bucket are final. The order and the bounds of the
// buckets do not depend on the order in which gradients become final. Borrows
// the parameters. Not thread safe.
class GradientBuckets {
 public:
  // bucket_bytes: at least 1, which gives each parameter a bucket of its own.
  GradientBuckets(Parameters& parameters, int64_t bucket_bytes);

  int count() const { return static_cast<int>(buckets_.size()); }
  // Returns the gradients of a bucket; index in [0, count()).
  std::span<float> gradients(int bucket) const {
    return buckets_[bucket].gradients;
  }

  // Marks parameter `index`'s gradient as final for this step. Calls
  // `complete`, in order, for each bucket that is now complete.
  void MarkReady(int index, absl::FunctionRef<void(int bucket)> complete);

  // Begins the next step. Returns kFailedPrecondition, naming the parameter, if
  // some gradient was not marked exactly once in this step.
  absl::Status FinishStep();

 private:
  struct Bucket {
    std::span<float> gradients;
    int parameters = 0;  // In this bucket.
    int missing = 0;     // Parameters not yet marked in this step.
  };

  absl::Status CheckMarks() const;

  Parameters& parameters_;
  std::vector<Bucket> buckets_;
  std::vector<int> bucket_of_;  // By parameter.
  std::vector<int> marks_;      // By parameter, in this step.
  size_t next_bucket_ = 0;      // The first bucket that is not complete.
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_GRADIENT_BUCKETS_H_
