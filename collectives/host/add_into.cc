#include "collectives/host/add_into.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "collectives/buffer.h"

namespace lockstep {
namespace {

// memcpy is how C++ reads memory of any alignment; it compiles to plain vector
// loads and stores.
template <typename T>
void Add(std::byte* __restrict sum, const std::byte* __restrict term,
         size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(T)) {
    T a;
    T b;
    std::memcpy(&a, sum + i, sizeof(T));
    std::memcpy(&b, term + i, sizeof(T));
    a += b;
    std::memcpy(sum + i, &a, sizeof(T));
  }
}

}  // namespace

void AddInto(DataType type, std::span<std::byte> sum,
             std::span<const std::byte> term) {
  switch (type) {
    case DataType::kFloat32:
      return Add<float>(sum.data(), term.data(), sum.size());
    case DataType::kFloat64:
      return Add<double>(sum.data(), term.data(), sum.size());
    case DataType::kInt64:
      // Unsigned, since overflow of a signed sum is undefined.
      return Add<uint64_t>(sum.data(), term.data(), sum.size());
  }
}

}  // namespace lockstep
