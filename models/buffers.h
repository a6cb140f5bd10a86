// What a model keeps beside its parameters: state that training changes but no
// gradient does, as batch norm's running statistics.
#ifndef LOCKSTEP_MODELS_BUFFERS_H_
#define LOCKSTEP_MODELS_BUFFERS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/data_type.h"

namespace lockstep {

// One buffer: the name that the model's source gives it, and either a float32
// tensor or one int64 (num_batches_tracked), which has the empty shape.
struct BufferSpec {
  std::string name;
  std::vector<int64_t> shape;
  DataType type = DataType::kFloat32;
  int64_t offset = 0;  // Elements from the start of the flat array of its type.
  int64_t size = 0;    // Product of the shape.
};

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
  std::span<float> value(int index);
  std::span<const float> value(int index) const;
  int64_t& counter(int index);
  int64_t counter(int index) const;

 private:
  std::vector<BufferSpec> specs_;
  std::vector<float> floats_;
  std::vector<int64_t> counters_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_BUFFERS_H_
