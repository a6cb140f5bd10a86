// The interface of a trainable network: its parameters, its buffers, and one
// training step.
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
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"

namespace lockstep {

class Communicator;

// A fixed number of zero-filled host floats, 64-byte aligned. Movable; spans
// stay valid when the buffer moves. A buffer of at least kHugePage bytes asks
// the kernel for huge pages, which need fewer address translations (TLB
// entries).
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
// and its position in the flat array of its data type.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // Elements from the start of the flat array.
  int64_t size = 0;    // Product of the shape.
  DataType type = DataType::kFloat32;

  // Returns this tensor's part of `all`, the flat array of the tensor's data
  // type.
  template <typename T>
  std::span<T> Part(std::span<T> all) const {
    assert(type == kDataTypeOf<std::remove_const_t<T>>);
    return all.subspan(offset, size);
  }
};
using ParameterSpec = TensorSpec;

// All parameters of one replica in one contiguous float32 array. Row-major
// tensors follow each other in the order in which the model's source declares
// them. The gradients are in a second array of the same layout. Any run of
// neighbouring parameters is therefore one span: a bucket.
class Parameters {
 public:
  // shapes: the name and shape of each parameter, in order. Values and
  // gradients start as zeros. alignment: each parameter begins at a multiple of
  // this many elements, behind a gap if it must.
  explicit Parameters(
      std::vector<std::pair<std::string, std::vector<int64_t>>> shapes,
      int64_t alignment = 1);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  int count() const { return static_cast<int>(specs_.size()); }

  // All parameters: host float32, 64-byte aligned; owned by this object, unless
  // they were placed elsewhere.
  std::span<float> values() { return values_; }
  std::span<const float> values() const { return values_; }
  std::span<float> gradients() { return gradients_; }
  std::span<const float> gradients() const { return gradients_; }

  // Moves the gradients to `memory`, for example memory that the ranks of a
  // group share, or a GPU's memory: float32 of the same size, 64-byte aligned.
  // `owner` keeps `memory` alive. The gradients' values are not copied.
  // Invalidates spans of gradients. PlaceValues moves the parameters likewise.
  void PlaceGradients(std::span<float> memory, std::shared_ptr<void> owner);
  void PlaceValues(std::span<float> memory, std::shared_ptr<void> owner);

  // One parameter's part of the values or gradients; index in [0, count()).
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
  std::span<float> values_;
  std::shared_ptr<void> value_owner_;
  std::span<float> gradients_;
  std::shared_ptr<void> gradient_owner_;
};

// A buffer: state that training changes without a gradient, such as batch
// norm's running statistics. A buffer is a float32 tensor or one int64 counter
// (num_batches_tracked) with the empty shape.
using BufferSpec = TensorSpec;

// All buffers of one replica, in the order in which the model's source declares
// them. The float32 buffers are in one contiguous array, the int64 counters in
// another.
class Buffers {
 public:
  Buffers() = default;

  // Appends a buffer, zero-filled, and returns its index. Invalidates spans.
  // Must not be called after PlaceFloats.
  int AddFloats(std::string name, std::vector<int64_t> shape);
  int AddCounter(std::string name);

  const std::vector<BufferSpec>& specs() const { return specs_; }
  int count() const { return static_cast<int>(specs_.size()); }

  // Moves the float32 buffers to `memory` of the same size, for example a GPU's
  // memory. `owner` keeps `memory` alive. The values are not copied.
  void PlaceFloats(std::span<float> memory, std::shared_ptr<void> owner);

  // All buffers of one data type, in host memory; owned by this object, unless
  // they were placed elsewhere.
  std::span<float> floats() { return owner_ ? placed_ : std::span(floats_); }
  std::span<const float> floats() const {
    return owner_ ? std::span<const float>(placed_)
                  : std::span<const float>(floats_);
  }
  std::span<int64_t> counters() { return counters_; }
  std::span<const int64_t> counters() const { return counters_; }

  // One buffer's part of its array; index in [0, count()), of a buffer of that
  // type.
  std::span<float> value(int index) { return specs_[index].Part(floats()); }
  std::span<const float> value(int index) const {
    return specs_[index].Part(floats());
  }
  int64_t& counter(int index) { return specs_[index].Part(counters())[0]; }
  int64_t counter(int index) const { return specs_[index].Part(counters())[0]; }

 private:
  std::vector<BufferSpec> specs_;
  std::vector<float> floats_;
  std::span<float> placed_;  // Used if there is an owner.
  std::shared_ptr<void> owner_;
  std::vector<int64_t> counters_;
};

// A micro-batch. Borrowed for the duration of a call. Images are stored
// channels last, without gaps: element (n, c, h, w) is at ((n * H + h) * W + w)
// * C + c.
struct Batch {
  std::span<const float> images;    // Host [n, h, w, c].
  std::span<const int32_t> labels;  // Host [n], each in [0, classes).

  // The second label and the share of the first label, for images that are
  // mixed from two. Sample i's loss is shares[i] times the loss of labels[i]
  // plus 1 - shares[i] times the loss of other_labels[i]. Host [n], or both
  // empty.
  std::span<const int32_t> other_labels = {};
  std::span<const float> shares = {};

  // The keys of random masks (dropout, drop path): the samples' numbers, the
  // seed and the step. A sample has the same number on every rank. If `samples`
  // is empty, the numbers are 0 to n - 1.
  std::span<const int64_t> samples = {};
  uint64_t seed = 0;
  int64_t step = 0;
};

// Sums over samples. Adding them up over batches and ranks gives the sums over
// all samples.
struct Metrics {
  double loss_sum = 0;
  int64_t correct = 0;
  int64_t samples = 0;

  // Averages over the samples; there must be at least one sample.
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
// safe. A batch may have any size from 0 up; work space grows to the largest
// batch so far.
class Model {
 public:
  // A callback that receives a parameter's index once its gradient is final.
  using GradientReady = absl::FunctionRef<void(int)>;

  virtual ~Model() = default;

  virtual Parameters& parameters() = 0;

  // Batch norm's running statistics and the like. Empty if the model has no
  // buffers.
  virtual Buffers& buffers() = 0;

  // The shape of one image: n = 1.
  virtual const Shape& input_shape() const = 0;
  virtual int64_t classes() const = 0;

  // Makes every batch norm layer normalise, in training, over the batches of
  // all ranks of `group` (SyncBatchNorm). The model borrows `group` from now on
  // and uses it only in ForwardBackward. Every rank then calls ForwardBackward
  // at the same time, with an empty batch if the rank has no samples.
  // Parameters and buffers keep their values. Returns the number of batch norm
  // layers; 0 means that there is nothing to convert.
  virtual int ConvertSyncBatchNorm(Communicator& group) = 0;

  // Overwrites the gradients with the gradients of gradient_scale * (sum of the
  // batch's losses). Calls `ready` once for each parameter, from the last layer
  // to the first, while backward goes on with the layers below. Updates the
  // buffers. An empty batch gives zero gradients. Errors: the errors of the
  // group of ConvertSyncBatchNorm; kInvalidArgument if the sizes of images and
  // labels do not match or a label is out of range.
  virtual absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                                  float gradient_scale,
                                                  GradientReady ready) = 0;

  // Whether ForwardBackward calls `ready` only after all gradients are
  // computed.
  virtual bool announces_gradients_at_end() const { return false; }

  // Runs forward only and leaves the buffers unchanged. Errors:
  // kInvalidArgument, as ForwardBackward.
  virtual absl::StatusOr<Metrics> Evaluate(const Batch& batch) = 0;
};

// Checks that the sizes of the images, labels, shares and sample numbers of
// `batch` match each other and the model. Checks that labels are in range.
// Error: kInvalidArgument.
absl::Status CheckBatch(const Model& model, const Batch& batch);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_MODEL_H_
