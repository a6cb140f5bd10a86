#include "syncbn/testing/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/data_types.h"
#include "collectives/collective.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {
namespace {

template <typename T>
T Load(ConstBuffer buffer, int64_t i) {
  T value;
  std::memcpy(&value, buffer.bytes() + i * SizeOf(buffer.type), sizeof(value));
  return value;
}
template <typename T>
void Store(Buffer buffer, int64_t i, T value) {
  std::memcpy(buffer.bytes() + i * SizeOf(buffer.type), &value, sizeof(value));
}

// Calls fn(place in [n, c, hw], place in the layout) for each element.
template <typename Fn>
void ForEachPlace(const ActivationShape& shape, Fn fn) {
  size_t from = 0;
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t c = 0; c < shape.c; ++c) {
      for (int64_t i = 0; i < shape.hw; ++i) {
        fn(from++, static_cast<size_t>(PlaceOf(shape, n, c, i)));
      }
    }
  }
}

}  // namespace

double GetNumber(ConstBuffer buffer, int64_t i) {
  switch (buffer.type) {
    case DataType::kFloat64:
      return Load<double>(buffer, i);
    case DataType::kFloat16:
      return ToFloat(Load<Float16>(buffer, i));
    case DataType::kBFloat16:
      return ToFloat(Load<BFloat16>(buffer, i));
    default:
      return Load<float>(buffer, i);
  }
}

void SetNumber(Buffer buffer, int64_t i, double value) {
  switch (buffer.type) {
    case DataType::kFloat64:
      return Store(buffer, i, value);
    case DataType::kFloat16:
      return Store(buffer, i, ToFloat16(static_cast<float>(value)));
    case DataType::kBFloat16:
      return Store(buffer, i, ToBFloat16(static_cast<float>(value)));
    default:
      return Store(buffer, i, static_cast<float>(value));
  }
}

double RoundTo(DataType type, double value) {
  double memory;
  const Buffer one(&memory, 1, type);
  SetNumber(one, 0, value);
  return GetNumber(one, 0);
}

std::vector<double> RoundedTo(DataType type, std::vector<double> values) {
  for (double& value : values) value = RoundTo(type, value);
  return values;
}

double UnitRoundoff(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return 0x1p-53;
    case DataType::kFloat16:
      return 0x1p-11;
    case DataType::kBFloat16:
      return 0x1p-8;
    default:
      return 0x1p-24;
  }
}

double RoundingError(DataType type, double x) {
  const double normal = UnitRoundoff(type) * std::abs(x);
  switch (type) {  // Half of the smallest number, where it is that.
    case DataType::kFloat64:
      return normal + 0x1p-1074;
    case DataType::kFloat16:
      return std::max(normal, 0x1p-25);
    case DataType::kBFloat16:
      return normal + 0x1p-134;
    default:
      return normal + 0x1p-150;
  }
}

RecordAccess::RecordAccess(const StatisticsRecord& record, std::byte* memory)
    : memory(memory),
      mean(memory + record.mean_offset(), record.channels, record.type),
      second(memory + record.second_offset(), record.channels, record.type) {}

int64_t RecordAccess::count() const {
  int64_t count;
  std::memcpy(&count, memory, sizeof(count));
  return count;
}

void RecordAccess::set_count(int64_t count) const {
  std::memset(memory, 0, StatisticsRecord::kHeaderBytes);
  std::memcpy(memory, &count, sizeof(count));
}

int64_t PlaceOf(const ActivationShape& shape, int64_t n, int64_t c, int64_t i) {
  return shape.layout == Layout::kNchw ? (n * shape.c + c) * shape.hw + i
                                       : (n * shape.hw + i) * shape.c + c;
}

int64_t ChannelOf(const ActivationShape& shape, int64_t place) {
  return shape.layout == Layout::kNchw ? place / shape.hw % shape.c
                                       : place % shape.c;
}

std::vector<double> ToLayout(const ActivationShape& shape,
                             std::span<const double> nchw) {
  std::vector<double> out(nchw.size());
  ForEachPlace(shape, [&](size_t from, size_t to) { out[to] = nchw[from]; });
  return out;
}

std::vector<double> FromLayout(const ActivationShape& shape,
                               std::span<const double> values) {
  std::vector<double> out(values.size());
  ForEachPlace(shape, [&](size_t from, size_t to) { out[from] = values[to]; });
  return out;
}

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

}  // namespace lockstep
