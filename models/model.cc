#include "models/model.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/data_types.h"

namespace lockstep {
namespace {

int64_t ElementsOf(const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (const int64_t extent : shape) {
    assert(extent >= 0);
    size *= extent;
  }
  return size;
}

template <typename T, typename Spec>
std::span<T> Part(std::span<T> all, const Spec& spec) {
  return all.subspan(spec.offset, spec.size);
}

}  // namespace

AlignedBuffer::AlignedBuffer(int64_t size)
    : size_(size),
      data_(static_cast<float*>(::operator new (
          sizeof(float) * size, std::align_val_t{kAlignment}))) {
  std::fill_n(data_.get(), size_, 0.0f);
}

void AlignedBuffer::Free::operator()(float* data) const {
  ::operator delete (data, std::align_val_t{kAlignment});
}

Parameters::Parameters(
    std::vector<std::pair<std::string, std::vector<int64_t>>> shapes) {
  int64_t total = 0;
  for (auto& [name, shape] : shapes) {
    const int64_t size = ElementsOf(shape);
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

int Buffers::AddFloats(std::string name, std::vector<int64_t> shape) {
  const int64_t size = ElementsOf(shape);
  specs_.push_back({std::move(name), std::move(shape), DataType::kFloat32,
                    static_cast<int64_t>(floats_.size()), size});
  floats_.resize(floats_.size() + size);
  return count() - 1;
}

int Buffers::AddCounter(std::string name) {
  specs_.push_back({std::move(name),
                    {},
                    DataType::kInt64,
                    static_cast<int64_t>(counters_.size()),
                    1});
  counters_.push_back(0);
  return count() - 1;
}

std::span<float> Buffers::value(int index) {
  assert(specs_[index].type == DataType::kFloat32);
  return Part(floats(), specs_[index]);
}
std::span<const float> Buffers::value(int index) const {
  assert(specs_[index].type == DataType::kFloat32);
  return Part(floats(), specs_[index]);
}

int64_t& Buffers::counter(int index) {
  assert(specs_[index].type == DataType::kInt64);
  return counters_[specs_[index].offset];
}
int64_t Buffers::counter(int index) const {
  assert(specs_[index].type == DataType::kInt64);
  return counters_[specs_[index].offset];
}

}  // namespace lockstep
