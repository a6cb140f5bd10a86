// Reads and writes safetensors files, named tensors and a few strings, and puts
// a model's parameters and buffers into such tensors.
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

// One tensor; row-major, in the byte order of a little-endian machine, which is
// the file's.
struct NamedTensor {
  DataType type = DataType::kFloat32;
  std::vector<int64_t> shape;   // Empty: a scalar.
  std::vector<std::byte> data;  // Product of shape * SizeOf(type) bytes.

  // A tensor of these values; `shape` is theirs.
  template <typename T>
  static NamedTensor Of(std::vector<int64_t> shape, std::span<const T> values) {
    const std::span<const std::byte> bytes = std::as_bytes(values);
    return {kDataTypeOf<T>, std::move(shape), {bytes.begin(), bytes.end()}};
  }

  // Its values; empty if they are not of type T.
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

// A file's content. A name may be any UTF-8 but "__metadata__".
struct Safetensors {
  std::map<std::string, std::string> metadata;
  NamedTensors tensors;

  friend bool operator==(const Safetensors&, const Safetensors&) = default;
};

// Reads a file. Errors, all with the path: kNotFound and the like from the file
// system; kDataLoss if the content breaks the format (a length beyond the file,
// a header that is not JSON, a shape that does not fit its bytes, tensors that
// overlap or leave a gap); kUnimplemented for a type that DataType lacks.
absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path);

// Replaces a file as ReplaceFile does. Errors: kInvalidArgument if a tensor's
// bytes do not fit its shape; the file system's, with the path.
absl::Status WriteSafetensors(const std::string& path,
                              const Safetensors& content);

// The same between memory and content; `name` stands for the path in errors.
absl::StatusOr<Safetensors> ParseSafetensors(absl::string_view bytes,
                                             absl::string_view name);
absl::StatusOr<std::string> SerializeSafetensors(const Safetensors& content);

// Each parameter's value, or its gradient, as a float32 tensor under its name.
NamedTensors ValueTensors(const Parameters& parameters);
NamedTensors GradientTensors(const Parameters& parameters);

// Each buffer under its name: a float32 tensor, or an int64 scalar.
NamedTensors BufferTensors(const Buffers& buffers);

// Copies the values of all parameters and buffers from `tensors`, the content
// of `file`. Errors: kInvalidArgument, with the file and the tensor, if one is
// missing, is none of the model's, has another type or shape, or holds a NaN or
// an infinity; parameters and buffers are then as before.
absl::Status LoadTensors(const NamedTensors& tensors, absl::string_view file,
                         Parameters& parameters, Buffers& buffers);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_IO_SAFETENSORS_H_
