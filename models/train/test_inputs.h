// A model and a data set for tests, which show which rank trained on which
// samples; and tensors in the form of the gradients command's files.
#ifndef LOCKSTEP_MODELS_TRAIN_TEST_INPUTS_H_
#define LOCKSTEP_MODELS_TRAIN_TEST_INPUTS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/io/safetensors.h"
#include "models/model.h"

namespace lockstep {

// Returns n samples, fewer than 2^16. The image of a sample encodes its index;
// the label of sample i is i % 7.
MemoryDataset NumberedDataset(int64_t n);

// A model that decodes the indices of a batch of such samples, and records
// every batch. Every gradient and loss is a small whole number before it is
// scaled, so sums are exact. Element j of parameter p has the gradient
//
//   sum over samples i of (i + 3 * p + j) % 11.
//
// The loss of sample i is i % 5, and the sample is correct if i is even. The
// buffers describe this replica's training alone: buffer "sums" [2] holds the
// number of samples and the sum of their indices, and counter "batches" holds
// the number of batches with samples.
class CountingModel : public Model {
 public:
  // Has parameters of 3, 1, 5 and 2 elements, all `value` at first.
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
  // The keys of the random masks in each batch of training.
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

// Returns a model's parameters and buffers, as weights files have them.
Safetensors WeightsOf(Model& model);

// Returns n images of noise in [0, 1), and labels, of 28 x 28 in 10 classes.
// The same n gives the same bits, and a smaller n gives the first samples of a
// larger one.
Safetensors RandomBatch(int64_t n);

// Returns the largest difference of two files' float32 tensors, relative to the
// norm of the tensor in `b`. The names must be the same. Tensors named in
// `without` are left out.
double Distance(const NamedTensors& a, const NamedTensors& b,
                const std::set<std::string>& without = {});

// Returns whether the host has an NVIDIA driver.
bool HasGpu();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_TEST_INPUTS_H_
