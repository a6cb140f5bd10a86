// A model's parameters and their gradients, laid out for data parallelism.
#ifndef LOCKSTEP_MODELS_PARAMETERS_H_
#define LOCKSTEP_MODELS_PARAMETERS_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/aligned_buffer.h"

namespace lockstep {

// One parameter tensor: the name that the model's source gives it, its shape,
// and where it lies in the flat arrays.
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // Elements from the start of the flat array.
  int64_t size = 0;    // Product of the shape.
};

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
  std::span<float> values();
  std::span<const float> values() const;
  std::span<float> gradients();
  std::span<const float> gradients() const;

  // One parameter's part of those; index in [0, count()).
  std::span<float> value(int index);
  std::span<const float> value(int index) const;
  std::span<float> gradient(int index);
  std::span<const float> gradient(int index) const;

 private:
  std::vector<ParameterSpec> specs_;
  AlignedBuffer values_;
  AlignedBuffer gradients_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_PARAMETERS_H_
