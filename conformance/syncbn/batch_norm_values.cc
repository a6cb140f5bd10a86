// Conversions between float64 and the types and layouts of activations.
#include "conformance/syncbn/batch_norm_values.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "collectives/algorithms/half.h"
#include "collectives/data_type.h"
#include "syncbn/activations.h"

namespace lockstep {
namespace {

void Narrow(double value, double& out) { out = value; }
void Narrow(double value, float& out) { out = static_cast<float>(value); }
void Narrow(double value, Float16& out) {
  out = ToFloat16(static_cast<float>(value));
}
void Narrow(double value, BFloat16& out) {
  out = ToBFloat16(static_cast<float>(value));
}

double Widen(double value) { return value; }
double Widen(float value) { return value; }
double Widen(Float16 value) { return ToFloat(value); }
double Widen(BFloat16 value) { return ToFloat(value); }

// Calls fn with an element of the type.
template <typename Fn>
auto WithType(DataType type, Fn fn) {
  switch (type) {
    case DataType::kFloat64:
      return fn(double());
    case DataType::kFloat16:
      return fn(Float16());
    case DataType::kBFloat16:
      return fn(BFloat16());
    default:
      return fn(float());
  }
}

// Calls fn(place in [n, c, hw], place in the layout) for each element.
template <typename Fn>
void ForEachPlace(const ActivationShape& shape, Fn fn) {
  const bool first = shape.layout == Layout::kNchw;
  const int64_t channel_stride = first ? shape.hw : 1;
  const int64_t pixel_stride = first ? 1 : shape.c;
  size_t from = 0;
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t c = 0; c < shape.c; ++c) {
      int64_t to = n * shape.c * shape.hw + c * channel_stride;
      for (int64_t i = 0; i < shape.hw; ++i, to += pixel_stride) {
        fn(from++, static_cast<size_t>(to));
      }
    }
  }
}

}  // namespace

double RoundTo(DataType type, double value) {
  return WithType(type, [&](auto element) {
    Narrow(value, element);
    return Widen(element);
  });
}

std::string Encode(DataType type, std::span<const double> values) {
  return WithType(type, [&](auto element) {
    std::string bytes(values.size() * sizeof(element), '\0');
    for (size_t i = 0; i < values.size(); ++i) {
      Narrow(values[i], element);
      std::memcpy(bytes.data() + i * sizeof(element), &element,
                  sizeof(element));
    }
    return bytes;
  });
}

std::vector<double> Decode(DataType type, absl::string_view bytes) {
  return WithType(type, [&](auto element) {
    std::vector<double> values(bytes.size() / sizeof(element));
    for (size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&element, bytes.data() + i * sizeof(element),
                  sizeof(element));
      values[i] = Widen(element);
    }
    return values;
  });
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

uint64_t Hash(uint64_t key) {
  key = (key ^ (key >> 31)) * 0x7fb5d329728ea185;
  key = (key ^ (key >> 27)) * 0x81dadef4bc2dd44d;
  return key ^ (key >> 33);
}

double Uniform(uint64_t key) {
  return static_cast<double>(static_cast<int64_t>(Hash(key))) * 0x1p-63;
}

}  // namespace lockstep
