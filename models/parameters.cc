// Two flat arrays and the places of the tensors in them.
#include "models/parameters.h"

#include <cassert>

namespace lockstep {
namespace {

template <typename T>
std::span<T> Part(std::span<T> all, const ParameterSpec& spec) {
  return all.subspan(spec.offset, spec.size);
}

}  // namespace

Parameters::Parameters(
    std::vector<std::pair<std::string, std::vector<int64_t>>> shapes) {
  int64_t total = 0;
  for (auto& [name, shape] : shapes) {
    int64_t size = 1;
    for (const int64_t extent : shape) {
      assert(extent >= 0);
      size *= extent;
    }
    specs_.push_back({std::move(name), std::move(shape), total, size});
    total += size;
  }
  values_ = AlignedBuffer(total);
  gradients_ = AlignedBuffer(total);
}

std::span<float> Parameters::values() { return values_.span(); }
std::span<const float> Parameters::values() const { return values_.span(); }
std::span<float> Parameters::gradients() { return gradients_.span(); }
std::span<const float> Parameters::gradients() const {
  return gradients_.span();
}

std::span<float> Parameters::value(int index) {
  return Part(values(), specs_[index]);
}
std::span<const float> Parameters::value(int index) const {
  return Part(values(), specs_[index]);
}
std::span<float> Parameters::gradient(int index) {
  return Part(gradients(), specs_[index]);
}
std::span<const float> Parameters::gradient(int index) const {
  return Part(gradients(), specs_[index]);
}

}  // namespace lockstep
