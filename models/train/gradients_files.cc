#include "models/train/gradients_files.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "models/io/model_tensors.h"
#include "models/io/safetensors.h"
#include "models/model.h"

namespace lockstep {
namespace {

constexpr int64_t kSide = 28;

}  // namespace

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

Safetensors Reordered(const Safetensors& batch,
                      const std::vector<int64_t>& order) {
  Safetensors result = batch;
  for (auto& [name, tensor] : result.tensors) {
    const std::vector<std::byte>& from = batch.tensors.at(name).data;
    const size_t size = from.size() / order.size();
    for (size_t i = 0; i < order.size(); ++i) {
      std::memcpy(&tensor.data[i * size], &from[order[i] * size], size);
    }
  }
  return result;
}

}  // namespace lockstep
