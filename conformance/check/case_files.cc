// Moves rows of bytes about.
#include "conformance/check/case_files.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/data_type.h"
#include "conformance/protocol/case.h"
#include "models/safetensors.h"

namespace lockstep {
namespace {

template <typename T>
NamedTensor TensorOf(std::vector<int64_t> shape, std::span<const T> values) {
  NamedTensor tensor{
      .type = kDataTypeOf<T>, .shape = std::move(shape), .data = {}};
  tensor.data.resize(values.size_bytes());
  if (!values.empty()) {
    std::memcpy(tensor.data.data(), values.data(), values.size_bytes());
  }
  return tensor;
}

NamedTensor Rows(const NamedTensor& tensor, std::span<const int64_t> indices) {
  NamedTensor result{.type = tensor.type, .shape = tensor.shape, .data = {}};
  const auto rows = static_cast<size_t>(tensor.shape[0]);
  const size_t bytes = rows == 0 ? 0 : tensor.data.size() / rows;
  result.shape[0] = static_cast<int64_t>(indices.size());
  for (const int64_t index : indices) {
    const auto begin =
        static_cast<std::ptrdiff_t>(static_cast<size_t>(index) * bytes);
    result.data.insert(
        result.data.end(), tensor.data.begin() + begin,
        tensor.data.begin() + begin + static_cast<std::ptrdiff_t>(bytes));
  }
  return result;
}

}  // namespace

NamedTensor FloatTensor(std::vector<int64_t> shape,
                        std::span<const float> values) {
  return TensorOf(std::move(shape), values);
}

NamedTensor Int64Tensor(std::vector<int64_t> shape,
                        std::span<const int64_t> values) {
  return TensorOf(std::move(shape), values);
}

int64_t SampleCount(const CaseFiles& files, const std::string& part) {
  const auto labels = files.data.tensors.find(part + ".labels");
  if (labels == files.data.tensors.end()) return 0;
  const std::vector<int64_t>& shape = labels->second.shape;
  return shape.empty() ? 0 : shape[0];
}

CaseFiles WithSamples(const CaseFiles& files, const std::string& part,
                      std::span<const int64_t> indices) {
  CaseFiles result = files;
  for (auto& [name, tensor] : result.data.tensors) {
    if (name.starts_with(part + ".")) tensor = Rows(tensor, indices);
  }
  return result;
}

}  // namespace lockstep
