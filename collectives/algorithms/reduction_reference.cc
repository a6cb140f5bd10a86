#include "collectives/algorithms/reduction_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/data_types.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

template <typename E>
constexpr bool kIsHalf =
    std::is_same_v<E, Float16> || std::is_same_v<E, BFloat16>;

// What a partial result is kept in: exact for sums of int32 and uint8.
template <typename E>
using Wide =
    std::conditional_t<kIsHalf<E>, float,
                       std::conditional_t<std::is_integral_v<E>, int64_t, E>>;

template <typename E>
Wide<E> Widen(E x) {
  if constexpr (kIsHalf<E>) {
    return ToFloat(x);
  } else {
    return x;
  }
}

template <typename E>
E RoundTo(Wide<E> x) {
  if constexpr (std::is_same_v<E, Float16>) return ToFloat16(x);
  if constexpr (std::is_same_v<E, BFloat16>) return ToBFloat16(x);
  if constexpr (!kIsHalf<E>) return static_cast<E>(x);
}

int64_t CombineIntegers(ReduceOp op, int64_t a, int64_t b) {
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  switch (op) {
    case ReduceOp::kProduct:
      return static_cast<int64_t>(x * y);
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      break;
  }
  return static_cast<int64_t>(x + y);
}

// float32 by way of float64, which has room to round to it as if directly.
template <typename F>
F CombineFloats(ReduceOp op, F a, F b) {
  if (std::isnan(a) || std::isnan(b))
    return std::numeric_limits<F>::quiet_NaN();
  if (op == ReduceOp::kMin) return b < a ? b : a;
  if (op == ReduceOp::kMax) return a < b ? b : a;
  const double x = a;
  const double y = b;
  const F result = static_cast<F>(op == ReduceOp::kProduct ? x * y : x + y);
  return std::isnan(result) ? std::numeric_limits<F>::quiet_NaN() : result;
}

template <typename E>
Wide<E> Combine(ReduceOp op, Wide<E> a, Wide<E> b) {
  if constexpr (std::is_integral_v<E>) {
    return CombineIntegers(op, a, b);
  } else {
    return CombineFloats(op, a, b);
  }
}

template <typename E>
E Finish(ReduceOp op, Wide<E> x, int world_size) {
  if (op != ReduceOp::kAverage) return RoundTo<E>(x);
  return RoundTo<E>(static_cast<Wide<E>>(x / static_cast<Wide<E>>(world_size)));
}

template <typename E>
Wide<E> Node(ReduceOp op, const std::vector<E>& operands, int begin, int end) {
  if (end - begin == 1) return Widen(operands[static_cast<size_t>(begin)]);
  const int split = TreeSplit(static_cast<int>(operands.size()), begin, end);
  return Combine<E>(op, Node(op, operands, begin, split),
                    Node(op, operands, split, end));
}

template <typename E>
E ReduceOne(ReduceOp op, FoldOrder order, const std::vector<E>& operands) {
  const int world_size = static_cast<int>(operands.size());
  if (order == FoldOrder::kTree) {
    return Finish<E>(op, Node(op, operands, 0, world_size), world_size);
  }
  Wide<E> result = Widen(operands[0]);
  for (size_t i = 1; i < operands.size(); ++i) {
    result = Combine<E>(op, result, Widen(operands[i]));
  }
  return Finish<E>(op, result, world_size);
}

template <typename E>
Bytes ReduceAll(ReduceOp op, FoldOrder order,
                const std::vector<Bytes>& inputs) {
  Bytes output(inputs[0].size());
  std::vector<E> operands(inputs.size());
  for (size_t i = 0; i < output.size(); i += sizeof(E)) {
    for (size_t k = 0; k < inputs.size(); ++k) {
      std::memcpy(&operands[k], inputs[k].data() + i, sizeof(E));
    }
    const E result = ReduceOne(op, order, operands);
    std::memcpy(output.data() + i, &result, sizeof(E));
  }
  return output;
}

// A generator of the same numbers everywhere (SplitMix64).
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

template <typename E>
E DrawElement(Draws& draws) {
  const uint64_t draw = draws.Next();
  E element;
  if (draw % 8 == 0) {
    uint64_t bits = draws.Next();
    // All ones in the exponent, now and then.
    if (draw % 32 == 0) bits |= 0x7ff0'7f80'7c00'7c00;
    std::memcpy(&element, &bits, sizeof(E));
    return element;
  }
  const int small = static_cast<int>(draw >> 8 & 0xffff) - 0x8000;
  if constexpr (std::is_integral_v<E>) {
    element = static_cast<E>(small);
  } else {
    element = RoundTo<E>(static_cast<Wide<E>>(small) / 37);
  }
  return element;
}

template <typename E>
Bytes DrawElements(uint64_t seed, int64_t n) {
  Draws draws(seed);
  Bytes bytes(static_cast<size_t>(n) * sizeof(E));
  for (size_t i = 0; i < bytes.size(); i += sizeof(E)) {
    const E element = DrawElement<E>(draws);
    std::memcpy(bytes.data() + i, &element, sizeof(E));
  }
  return bytes;
}

Bytes Draw(DataType type, uint64_t seed, int64_t n) {
  switch (type) {
    case DataType::kFloat64:
      return DrawElements<double>(seed, n);
    case DataType::kFloat32:
      return DrawElements<float>(seed, n);
    case DataType::kFloat16:
      return DrawElements<Float16>(seed, n);
    case DataType::kBFloat16:
      return DrawElements<BFloat16>(seed, n);
    case DataType::kInt32:
      return DrawElements<int32_t>(seed, n);
    case DataType::kInt64:
      return DrawElements<int64_t>(seed, n);
    case DataType::kUInt8:
      break;
  }
  return DrawElements<uint8_t>(seed, n);
}

}  // namespace

Bytes Reference(DataType type, ReduceOp op, FoldOrder order,
                const std::vector<Bytes>& inputs) {
  switch (type) {
    case DataType::kFloat64:
      return ReduceAll<double>(op, order, inputs);
    case DataType::kFloat32:
      return ReduceAll<float>(op, order, inputs);
    case DataType::kFloat16:
      return ReduceAll<Float16>(op, order, inputs);
    case DataType::kBFloat16:
      return ReduceAll<BFloat16>(op, order, inputs);
    case DataType::kInt32:
      return ReduceAll<int32_t>(op, order, inputs);
    case DataType::kInt64:
      return ReduceAll<int64_t>(op, order, inputs);
    case DataType::kUInt8:
      break;
  }
  return ReduceAll<uint8_t>(op, order, inputs);
}

std::vector<Bytes> DrawInputs(DataType type, int world_size, int64_t n) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < world_size; ++rank) {
    inputs.push_back(Draw(type, static_cast<uint64_t>(rank) + 17, n));
  }
  return inputs;
}

}  // namespace lockstep
