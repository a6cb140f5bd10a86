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

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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
    std::vector<std::pair<std::string, std::vector<int64_t>>> shapes,
    int64_t alignment) {
  int64_t total = 0;
  for (auto& [name, shape] : shapes) {
    const int64_t size = ElementsOf(shape);
    total = (total + alignment - 1) / alignment * alignment;
    specs_.push_back({std::move(name), std::move(shape), total, size});
    total += size;
  }
  const auto values = std::make_shared<AlignedBuffer>(total);
  values_ = values->span();
  value_owner_ = values;
  const auto gradients = std::make_shared<AlignedBuffer>(total);
  PlaceGradients(gradients->span(), gradients);
}

void Parameters::PlaceValues(std::span<float> memory,
                             std::shared_ptr<void> owner) {
  assert(memory.size() == values_.size());
  values_ = memory;
  value_owner_ = std::move(owner);
}

void Parameters::PlaceGradients(std::span<float> memory,
                                std::shared_ptr<void> owner) {
  assert(memory.size() == values_.size());
  gradients_ = memory;
  gradient_owner_ = std::move(owner);
}

void Buffers::PlaceFloats(std::span<float> memory,
                          std::shared_ptr<void> owner) {
  assert(memory.size() == floats_.size());
  placed_ = memory;
  owner_ = std::move(owner);
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

absl::Status CheckBatch(const Model& model, const Batch& batch) {
  const size_t n = batch.labels.size();
  const int64_t size = model.input_shape().size();
  if (batch.images.size() != n * size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the images have ", batch.images.size(), " floats; ", n,
                     " labels of ", size, " floats each need ", n * size));
  }
  for (const size_t values :
       {batch.other_labels.size(), batch.shares.size(), batch.samples.size()}) {
    if (values != 0 && values != n) {
      return absl::InvalidArgumentError(
          absl::StrCat(values, " values for a batch of ", n, " labels"));
    }
  }
  for (const std::span<const int32_t> labels :
       {batch.labels, batch.other_labels}) {
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] >= 0 && labels[i] < model.classes()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("label ", labels[i], " of sample ", i, " is not in [0, ",
                       model.classes(), ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
