#include "models/model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <memory>
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

}  // namespace

AlignedBuffer::AlignedBuffer(int64_t size) : size_(size) {
  const auto bytes = static_cast<int64_t>(sizeof(float)) * size;
  const bool is_huge = bytes >= kHugePage;
  const std::align_val_t alignment{
      static_cast<size_t>(is_huge ? kHugePage : kAlignment)};
  data_ = {static_cast<float*>(::operator new(bytes, alignment)),
           Free{alignment}};
  // If madvise fails, the memory stays in small pages.
  if (is_huge) madvise(data_.get(), bytes, MADV_HUGEPAGE);
  std::fill_n(data_.get(), size_, 0.0f);
}

void AlignedBuffer::Free::operator()(float* data) const {
  ::operator delete(data, alignment);
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
  auto memory = std::make_shared<AlignedBuffer>(total);
  PlaceGradients(memory->span(), memory);
}

void Parameters::PlaceGradients(std::span<float> memory,
                                std::shared_ptr<void> owner) {
  assert(memory.size() == values_.span().size());
  gradients_ = memory;
  gradient_owner_ = std::move(owner);
}

int Buffers::AddFloats(std::string name, std::vector<int64_t> shape) {
  const int64_t size = ElementsOf(shape);
  specs_.push_back({std::move(name), std::move(shape),
                    static_cast<int64_t>(floats_.size()), size});
  floats_.resize(floats_.size() + size);
  return count() - 1;
}

int Buffers::AddCounter(std::string name) {
  const auto offset = static_cast<int64_t>(counters_.size());
  specs_.push_back({std::move(name), {}, offset, 1, DataType::kInt64});
  counters_.push_back(0);
  return count() - 1;
}

}  // namespace lockstep
