// Reads and writes safetensors files, which hold named tensors and strings.
// Converts a model's parameters and buffers to such tensors and back.
#ifndef LOCKSTEP_MODELS_IO_SAFETENSORS_H_
#define LOCKSTEP_MODELS_IO_SAFETENSORS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "models/model.h"

namespace lockstep {

// One tensor; row-major, in the file's byte order, which is little-endian as
// the machine's.
struct NamedTensor {
  DataType type = DataType::kFloat32;
  std::vector<int64_t> shape;   // Empty: a scalar.
  std::vector<std::byte> data;  // Product of shape * SizeOf(type) bytes.

  // Returns a tensor with copies of `values`, whose shape is `shape`.
  template <typename T>
  static NamedTensor Of(std::vector<int64_t> shape, std::span<const T> values) {
    const std::span<const std::byte> bytes = std::as_bytes(values);
    return {kDataTypeOf<T>, std::move(shape), {bytes.begin(), bytes.end()}};
  }

  // Returns the tensor's values, or nothing if their type is not T.
  template <typename T>
  std::vector<T> Values() const {
    if (type != kDataTypeOf<T>) return {};
    std::vector<T> values(data.size() / sizeof(T));
    std::ranges::copy(data, std::as_writable_bytes(std::span(values)).begin());
    return values;
  }

  friend bool operator==(const NamedTensor&, const NamedTensor&) = default;
};

using NamedTensors = std::map<std::string, NamedTensor>;

// A file's content. A name may be any UTF-8 string except "__metadata__".
struct Safetensors {
  std::map<std::string, std::string> metadata;
  NamedTensors tensors;

  friend bool operator==(const Safetensors&, const Safetensors&) = default;
};

// Reads a file. Errors, all with the path: kNotFound and the like from the file
// system; kDataLoss if the content breaks the format (a length beyond the file,
// a header that is not JSON, a shape that does not match its bytes, tensors
// that overlap or leave a gap); kUnimplemented for a type that DataType lacks.
absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path);

// Writes a file as ReplaceFile does. Errors: kInvalidArgument if a tensor's
// bytes do not match its shape; the file system's, with the path.
absl::Status WriteSafetensors(const std::string& path,
                              const Safetensors& content);

// Parse and serialize a file's content in memory. `name` stands for the path in
// errors.
absl::StatusOr<Safetensors> ParseSafetensors(absl::string_view bytes,
                                             absl::string_view name);
absl::StatusOr<std::string> SerializeSafetensors(const Safetensors& content);

// Return each parameter's value, or its gradient, as a float32 tensor under its
// name.
NamedTensors ValueTensors(const Parameters& parameters);
NamedTensors GradientTensors(const Parameters& parameters);

// Returns each buffer under its name: a float32 tensor, or an int64 scalar.
NamedTensors BufferTensors(const Buffers& buffers);

// Copies the values of all parameters and buffers from `tensors`, the content
// of `file`. Errors: kInvalidArgument, with the file and the tensor, if a
// tensor is missing, does not belong to the model, has another type or shape,
// or holds a NaN, an infinity or an impossible count. Parameters and buffers
// are then unchanged.
absl::Status LoadTensors(const NamedTensors& tensors, absl::string_view file,
                         Parameters& parameters, Buffers& buffers);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_IO_SAFETENSORS_H_
