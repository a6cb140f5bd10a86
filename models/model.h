// What a trainer needs of a network: its parameters, its buffers, and one step.
#ifndef LOCKSTEP_MODELS_MODEL_H_
#define LOCKSTEP_MODELS_MODEL_H_

#include <cassert>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"

namespace lockstep {

class Communicator;

// A fixed number of zero-filled host floats, 64-byte aligned. Movable; spans
// stay valid when it moves. From kHugePage bytes on it asks the kernel for huge
// pages, so that a processor looks up fewer addresses.
class AlignedBuffer {
 public:
  static constexpr int64_t kAlignment = 64;  // Bytes: a cache line.
  static constexpr int64_t kHugePage = 2 << 20;

  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size);

  int64_t size() const { return size_; }
  float* data() { return data_.get(); }
  std::span<float> span() { return {data_.get(), static_cast<size_t>(size_)}; }
  std::span<const float> span() const {
    return {data_.get(), static_cast<size_t>(size_)};
  }

 private:
  struct Free {
    std::align_val_t alignment;
    void operator()(float* data) const;
  };

  int64_t size_ = 0;
  std::unique_ptr<float[], Free> data_;
};

// N images of C channels; or N sequences of H positions (and W = 1) of C
// values.
struct Shape {
  int64_t n = 0;
  int64_t c = 0;
  int64_t h = 1;
  int64_t w = 1;

  int64_t size() const { return n * c * h * w; }
  friend bool operator==(const Shape&, const Shape&) = default;
};

// One tensor of a model: the name that the model's source gives it, its shape,
// and where it lies in the flat array of its type.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // Elements from the start of the flat array.
  int64_t size = 0;    // Product of the shape.
  DataType type = DataType::kFloat32;

  // Its part of that array.
  template <typename T>
  std::span<T> Part(std::span<T> all) const {
    assert(type == kDataTypeOf<std::remove_const_t<T>>);
    return all.subspan(offset, size);
  }
};
using ParameterSpec = TensorSpec;

// All parameters of one replica in one contiguous float32 array (row-major
// tensors one after the other, in the order in which the model's source
// declares them), and their gradients in a second array of the same layout.
// Any run of neighbouring parameters is therefore one span: a bucket.
class Parameters {
 public:
  // shapes: name and shape of each parameter, in order. Zero-filled.
  explicit Parameters(
      std::vector<std::pair<std::string, std::vector<int64_t>>> shapes);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  int count() const { return static_cast<int>(specs_.size()); }

  // Host float32, 64-byte aligned, all parameters; owned by this object.
  std::span<float> values() { return values_.span(); }
  std::span<const float> values() const { return values_.span(); }
  std::span<float> gradients() { return gradients_; }
  std::span<const float> gradients() const { return gradients_; }

  // Gives the gradients another place, such as memory that the ranks of a group
  // share: host float32 of the same size, 64-byte aligned, which `owner` keeps
  // alive. Their values do not move along. Invalidates spans of gradients.
  void PlaceGradients(std::span<float> memory, std::shared_ptr<void> owner);

  // One parameter's part of those; index in [0, count()).
  std::span<float> value(int index) { return specs_[index].Part(values()); }
  std::span<const float> value(int index) const {
    return specs_[index].Part(values());
  }
  std::span<float> gradient(int index) {
    return specs_[index].Part(gradients());
  }
  std::span<const float> gradient(int index) const {
    return specs_[index].Part(gradients());
  }

 private:
  std::vector<ParameterSpec> specs_;
  AlignedBuffer values_;
  std::span<float> gradients_;
  std::shared_ptr<void> gradient_owner_;
};

// State that training changes but no gradient does, such as batch norm's
// running statistics: a float32 tensor, or one int64 (num_batches_tracked),
// which has the empty shape.
using BufferSpec = TensorSpec;

// All buffers of one replica, in the order in which the model's source declares
// them: the float32 ones in one contiguous array, the int64 ones in another.
class Buffers {
 public:
  Buffers() = default;

  // Appends a buffer, zero-filled, and returns its index. Invalidates spans.
  int AddFloats(std::string name, std::vector<int64_t> shape);
  int AddCounter(std::string name);

  const std::vector<BufferSpec>& specs() const { return specs_; }
  int count() const { return static_cast<int>(specs_.size()); }

  // Host memory of all buffers of the type; owned by this object.
  std::span<float> floats() { return floats_; }
  std::span<const float> floats() const { return floats_; }
  std::span<int64_t> counters() { return counters_; }
  std::span<const int64_t> counters() const { return counters_; }

  // One buffer's part of those; index in [0, count()), of that type.
  std::span<float> value(int index) { return specs_[index].Part(floats()); }
  std::span<const float> value(int index) const {
    return specs_[index].Part(floats());
  }
  int64_t& counter(int index) { return specs_[index].Part(counters())[0]; }
  int64_t counter(int index) const { return specs_[index].Part(counters())[0]; }

 private:
  std::vector<BufferSpec> specs_;
  std::vector<float> floats_;
  std::vector<int64_t> counters_;
};

// A micro-batch. Borrowed for the duration of a call. Images lie channels last:
// element (n, c, h, w) is at ((n * H + h) * W + w) * C + c, without gaps.
struct Batch {
  std::span<const float> images;    // Host [n, h, w, c].
  std::span<const int32_t> labels;  // Host [n], each in [0, classes).

  // Of images that are mixed of two: sample i's loss is shares[i] times that of
  // labels[i] plus 1 - shares[i] times that of other_labels[i]. Host [n], or
  // both empty.
  std::span<const int32_t> other_labels = {};
  std::span<const float> shares = {};

  // The keys of random masks (dropout, drop path): the samples' numbers, the
  // same on whichever rank a sample is, and the step's. No numbers: 0 to n - 1.
  std::span<const int64_t> samples = {};
  uint64_t seed = 0;
  int64_t step = 0;
};

// Sums over samples, so that they add up over batches and ranks.
struct Metrics {
  double loss_sum = 0;
  int64_t correct = 0;
  int64_t samples = 0;

  // Of the samples, of which there is at least one.
  double mean_loss() const { return loss_sum / static_cast<double>(samples); }
  double accuracy() const {
    return static_cast<double>(correct) / static_cast<double>(samples);
  }

  Metrics& operator+=(const Metrics& other) {
    loss_sum += other.loss_sum;
    correct += other.correct;
    samples += other.samples;
    return *this;
  }
};

// One replica of a classifier trained with softmax cross-entropy. Not thread
// safe. Any batch size from 0 up; work space grows to the largest seen.
class Model {
 public:
  // Called with a parameter's index once its gradient is final.
  using GradientReady = absl::FunctionRef<void(int)>;

  virtual ~Model() = default;

  virtual Parameters& parameters() = 0;

  // Running statistics and the like; empty in models without.
  virtual Buffers& buffers() = 0;

  // Of one image: n = 1.
  virtual const Shape& input_shape() const = 0;
  virtual int64_t classes() const = 0;

  // Makes every batch norm layer normalise, in training, over the batches of
  // all ranks of `group` (SyncBatchNorm), which the model borrows from now on
  // and uses in ForwardBackward alone. Every rank then calls ForwardBackward at
  // the same time, with an empty batch if need be. Parameters and buffers stay.
  // Returns the number of such layers: 0 where there is nothing to convert.
  virtual int ConvertSyncBatchNorm(Communicator& group) = 0;

  // Overwrites the gradients with those of gradient_scale * (sum of the batch's
  // losses), calling `ready` once for each parameter, from the last layer to
  // the first, while backward goes on with the layers below. Updates the
  // buffers. An empty batch gives zero gradients. Errors: those of the group of
  // ConvertSyncBatchNorm; kInvalidArgument if the sizes of images and labels do
  // not fit each other or a label is out of range.
  virtual absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                                  float gradient_scale,
                                                  GradientReady ready) = 0;

  // Whether ForwardBackward calls `ready` only once nothing is left to compute.
  virtual bool announces_gradients_at_end() const { return false; }

  // Forward only, with the buffers as they are. Errors: kInvalidArgument as
  // above.
  virtual absl::StatusOr<Metrics> Evaluate(const Batch& batch) = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_MODEL_H_
