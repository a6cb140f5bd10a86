// What tests train: a model and a data set that show who trained on what, and
// tensors as the files of the gradients command hold them.
#ifndef LOCKSTEP_MODELS_TRAIN_TEST_INPUTS_H_
#define LOCKSTEP_MODELS_TRAIN_TEST_INPUTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/io/safetensors.h"
#include "models/model.h"

namespace lockstep {

// n samples, fewer than 2^16, whose images spell their own index; the label of
// sample i is i % 7.
MemoryDataset NumberedDataset(int64_t n);

// Reads the indices back from a batch of such samples, and writes down every
// batch. Every gradient and loss is a small whole number before it is scaled,
// so that sums are exact: element j of parameter p has the gradient
//
//   sum over samples i of (i + 3 * p + j) % 11,
//
// the loss of sample i is i % 5, and it is correct if i is even. Of what this
// replica alone has trained on, buffer "sums" [2] holds the number of samples
// and the sum of their indices, and counter "batches" how many had samples.
class CountingModel : public Model {
 public:
  // Parameters of 3, 1, 5 and 2 elements, all `value` at first.
  explicit CountingModel(float value = 0);

  Parameters& parameters() override { return parameters_; }
  Buffers& buffers() override { return buffers_; }
  const Shape& input_shape() const override { return input_shape_; }
  int64_t classes() const override { return 10; }
  int ConvertSyncBatchNorm(Communicator&) override { return 0; }
  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override;
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override;

  // The indices of each batch so far.
  std::vector<std::vector<int64_t>> trained, evaluated;
  // What random masks would be drawn from in each batch of training.
  struct MaskKeys {
    std::vector<int64_t> samples;
    uint64_t seed;
    int64_t step;
    bool operator==(const MaskKeys&) const = default;
  };
  std::vector<MaskKeys> mask_keys;

 private:
  Parameters parameters_;
  Buffers buffers_;
  Shape input_shape_ = {.n = 1, .c = 1, .h = 28, .w = 28};
};

// A model's parameters and buffers, as weights files have them.
Safetensors WeightsOf(Model& model);

// n images of noise in [0, 1), and labels, of 28 x 28 in 10 classes. The same
// numbers give the same bits; the samples of a smaller n are the first of a
// larger one's.
Safetensors RandomBatch(int64_t n);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_TEST_INPUTS_H_
