// Moves rows of bytes about.
#include "conformance/check/cases/check_case.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/data_types.h"
#include "conformance/check/judge/verdict.h"
#include "conformance/protocol/case.h"
#include "models/io/safetensors.h"

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

// Permutes a case's rows within each global batch.
namespace {

enum class Order { kReversed, kRotated };

std::vector<int64_t> Permuted(int64_t size, int64_t block, Order order) {
  std::vector<int64_t> indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  for (int64_t begin = 0; begin < size; begin += block) {
    const int64_t end = std::min(size, begin + block);
    const auto first = indices.begin() + begin, last = indices.begin() + end;
    if (order == Order::kReversed) {
      std::reverse(first, last);
    } else {
      std::rotate(first, first + (end - begin) / 2, last);
    }
  }
  return indices;
}

bool ComparesNumbers(const CheckCase& check) {
  return std::any_of(check.claims.begin(), check.claims.end(), [](Claim claim) {
    return claim == Claim::kGradients || claim == Claim::kLoss ||
           claim == Claim::kState || claim == Claim::kEvaluation;
  });
}

}  // namespace

std::vector<Shadow> ShadowsOf(const CheckCase& check) {
  const Case& c = check.one_rank.c;
  if (c.shuffle || !ComparesNumbers(check)) return {};
  const int64_t batch =
      std::accumulate(c.batch_sizes.begin(), c.batch_sizes.end(), int64_t{0});
  const int64_t test = SampleCount(check.files, "test");
  std::vector<Shadow> shadows;
  for (const Order order : {Order::kReversed, Order::kRotated}) {
    CaseFiles files =
        WithSamples(check.files, "train",
                    Permuted(SampleCount(check.files, "train"), batch, order));
    files = WithSamples(files, "test",
                        Permuted(test, std::max<int64_t>(test, 1), order));
    shadows.push_back({.plan = check.one_rank, .files = std::move(files)});
  }
  return shadows;
}

}  // namespace lockstep
