#include "models/train/test_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/data/dataset.h"
#include "models/io/safetensors.h"
#include "models/model.h"

namespace lockstep {
namespace {

constexpr int kLabels = 7;     // Of the numbered data set.
constexpr int64_t kSide = 28;  // Of the random images.

// Returns the indices of a batch. An image is two pixels: the index's high and
// low byte.
absl::StatusOr<std::vector<int64_t>> IndicesOf(const Batch& batch) {
  if (batch.images.size() != 2 * batch.labels.size()) {
    return absl::InvalidArgumentError("images and labels differ in number");
  }
  std::vector<int64_t> indices;
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    indices.push_back(256 * std::lround(255 * batch.images[2 * i]) +
                      std::lround(255 * batch.images[2 * i + 1]));
    if (batch.labels[i] != indices[i] % kLabels) {
      return absl::InvalidArgumentError(absl::StrCat(
          "image ", indices[i], " came with label ", batch.labels[i]));
    }
  }
  return indices;
}

Metrics MetricsOf(const std::vector<int64_t>& indices) {
  Metrics metrics;
  for (const int64_t index : indices) {
    metrics += {static_cast<double>(index % 5), index % 2 == 0 ? 1 : 0, 1};
  }
  return metrics;
}

}  // namespace

MemoryDataset NumberedDataset(int64_t n) {
  std::vector<uint8_t> images, labels;
  for (int64_t i = 0; i < n; ++i) {
    images.push_back(static_cast<uint8_t>(i / 256));
    images.push_back(static_cast<uint8_t>(i % 256));
    labels.push_back(static_cast<uint8_t>(i % kLabels));
  }
  return MemoryDataset({1, 2, 1}, kLabels, std::move(images),
                       std::move(labels));
}

CountingModel::CountingModel(float value)
    : parameters_({{"a", {3}}, {"b", {}}, {"c", {5, 1}}, {"d", {2}}}) {
  const std::span<float> values = parameters_.values();
  std::fill(values.begin(), values.end(), value);
  buffers_.AddFloats("sums", {2});
  buffers_.AddCounter("batches");
}

absl::StatusOr<Metrics> CountingModel::ForwardBackward(const Batch& batch,
                                                       float gradient_scale,
                                                       GradientReady ready) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                            IndicesOf(batch));
  trained.push_back(indices);
  mask_keys.push_back(
      {{batch.samples.begin(), batch.samples.end()}, batch.seed, batch.step});
  for (int p = parameters_.count() - 1; p >= 0; --p) {
    const std::span<float> gradient = parameters_.gradient(p);
    for (size_t j = 0; j < gradient.size(); ++j) {
      int64_t sum = 0;
      for (const int64_t i : indices) {
        sum += (i + 3 * p + static_cast<int64_t>(j)) % 11;
      }
      gradient[j] = gradient_scale * static_cast<float>(sum);
    }
    ready(p);
  }
  for (const int64_t i : indices) {
    buffers_.floats()[0] += 1;
    buffers_.floats()[1] += static_cast<float>(i);
  }
  if (!indices.empty()) ++buffers_.counters()[0];
  return MetricsOf(indices);
}

absl::StatusOr<Metrics> CountingModel::Evaluate(const Batch& batch) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                            IndicesOf(batch));
  evaluated.push_back(indices);
  return MetricsOf(indices);
}

Safetensors WeightsOf(Model& model) {
  Safetensors weights;
  weights.tensors = ValueTensors(model.parameters());
  weights.tensors.merge(BufferTensors(model.buffers()));
  return weights;
}

Safetensors RandomBatch(int64_t n) {
  std::mt19937 generator(11);
  std::vector<float> images;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < n; ++i) {
    labels.push_back(generator() % 10);
    for (int64_t j = 0; j < kSide * kSide; ++j) {
      images.push_back(static_cast<float>(generator() >> 8) * 0x1p-24f);
    }
  }
  Safetensors batch;
  batch.tensors["images"] =
      NamedTensor::Of<float>({n, 1, kSide, kSide}, images);
  batch.tensors["labels"] = NamedTensor::Of<int64_t>({n}, labels);
  return batch;
}

double Distance(const NamedTensors& a, const NamedTensors& b,
                const std::set<std::string>& without) {
  double largest = 0;
  if (a.size() != b.size()) return INFINITY;
  for (const auto& [name, tensor] : b) {
    if (tensor.type != DataType::kFloat32 || without.contains(name)) continue;
    const auto other = a.find(name);
    if (other == a.end()) return INFINITY;
    const std::vector<float> x = other->second.Values<float>();
    const std::vector<float> y = tensor.Values<float>();
    double difference = 0, norm = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      difference += std::pow(x[i] - y[i], 2);
      norm += std::pow(y[i], 2);
    }
    if (norm > 0) largest = std::fmax(largest, std::sqrt(difference / norm));
  }
  return largest;
}

bool HasGpu() { return std::filesystem::exists("/dev/nvidiactl"); }

}  // namespace lockstep
