// Two flat arrays and the places of the buffers in them.
#include "models/buffers.h"

#include <cassert>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/data_type.h"

namespace lockstep {

int Buffers::AddFloats(std::string name, std::vector<int64_t> shape) {
  int64_t size = 1;
  for (const int64_t extent : shape) {
    assert(extent >= 0);
    size *= extent;
  }
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
  return floats().subspan(specs_[index].offset, specs_[index].size);
}
std::span<const float> Buffers::value(int index) const {
  assert(specs_[index].type == DataType::kFloat32);
  return floats().subspan(specs_[index].offset, specs_[index].size);
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
