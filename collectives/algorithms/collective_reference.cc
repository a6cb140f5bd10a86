#include "collectives/algorithms/collective_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/counter_random.h"
#include "base/data_types.h"
#include "base/half_reference.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

template <typename E>
inline constexpr HalfFormat kFormat = kFloat16Format;
template <>
inline constexpr HalfFormat kFormat<BFloat16> = kBFloat16Format;

template <typename E>
constexpr bool kIsHalf =
    std::is_same_v<E, Float16> || std::is_same_v<E, BFloat16>;

// The type of a partial result: exact for sums of int32 and uint8.
template <typename E>
using Wide =
    std::conditional_t<kIsHalf<E>, float,
                       std::conditional_t<std::is_integral_v<E>, int64_t, E>>;

template <typename E>
Wide<E> Widen(E x) {
  if constexpr (kIsHalf<E>) {
    return static_cast<float>(DecodeHalf(kFormat<E>, x.bits));
  } else {
    return x;
  }
}

template <typename E>
E RoundTo(double x) {
  if constexpr (kIsHalf<E>) {
    return {EncodeHalf(kFormat<E>, x)};
  } else {
    return static_cast<E>(x);
  }
}

// Computes modulo 2^64, because signed overflow is undefined in C++.
int64_t Combine(ReduceOp op, int64_t a, int64_t b) {
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

// Computes float32 in float64, whose precision makes the second rounding exact.
template <typename F>
F Combine(ReduceOp op, F a, F b) {
  constexpr F kNan = std::numeric_limits<F>::quiet_NaN();
  if (std::isnan(a) || std::isnan(b)) return kNan;
  if (op == ReduceOp::kMin) return b < a ? b : a;
  if (op == ReduceOp::kMax) return a < b ? b : a;
  const double x = a;
  const double y = b;
  const F result = static_cast<F>(op == ReduceOp::kProduct ? x * y : x + y);
  return std::isnan(result) ? kNan : result;
}

// The elements of one rank that are folded together.
template <typename W>
using Row = std::vector<W>;

template <typename W>
void CombineRows(ReduceOp op, const Row<W>& a, const Row<W>& b,
                 Row<W>& result) {
  for (size_t i = 0; i < a.size(); ++i) result[i] = Combine(op, a[i], b[i]);
}

// Folds the rows, by rank, into the first row.
template <typename W>
void FoldTree(ReduceOp op, std::vector<Row<W>>& x) {
  size_t power = std::bit_floor(x.size());
  const size_t pairs = x.size() - power;
  for (size_t i = 0; i < pairs; ++i) {
    CombineRows(op, x[2 * i], x[2 * i + 1], x[i]);
  }
  for (size_t i = pairs; i < power; ++i) x[i].swap(x[i + pairs]);
  for (; power > 1; power /= 2) {
    for (size_t i = 0; i < power; i += 2) {
      CombineRows(op, x[i], x[i + 1], x[i / 2]);
    }
  }
}

template <typename W>
void FoldChain(ReduceOp op, std::vector<Row<W>>& x) {
  for (size_t k = 1; k < x.size(); ++k) CombineRows(op, x[0], x[k], x[0]);
}

template <typename E>
E Finish(ReduceOp op, Wide<E> x, size_t world_size) {
  if (op == ReduceOp::kAverage) x /= static_cast<Wide<E>>(world_size);
  if constexpr (kIsHalf<E>) {
    return RoundTo<E>(x);
  } else {
    return static_cast<E>(x);
  }
}

template <typename E>
E Load(const Bytes& bytes, int64_t i) {
  E element;
  std::memcpy(&element, bytes.data() + i * sizeof(E), sizeof(E));
  return element;
}

// Returns elements [begin, begin + count) of the reduction. A chain begins with
// rank `first` and goes round.
Bytes Reduce(const CheckedCall& call, FoldOrder order, int64_t begin,
             int64_t count, size_t first, const std::vector<Bytes>& inputs) {
  constexpr int64_t kRow = 256;
  return WithDataType(call.type, [&]<typename E>(E) {
    std::vector<Row<Wide<E>>> rows(inputs.size());
    Bytes output(static_cast<size_t>(count) * sizeof(E));
    for (int64_t i = 0; i < count; i += kRow) {
      const int64_t size = std::min(kRow, count - i);
      for (size_t k = 0; k < rows.size(); ++k) {
        rows[k].resize(static_cast<size_t>(size));
        const Bytes& input = inputs[(first + k) % rows.size()];
        for (int64_t j = 0; j < size; ++j) {
          rows[k][j] = Widen(Load<E>(input, begin + i + j));
        }
      }
      order == FoldOrder::kTree ? FoldTree(call.op, rows)
                                : FoldChain(call.op, rows);
      for (int64_t j = 0; j < size; ++j) {
        const E result = Finish<E>(call.op, rows[0][j], rows.size());
        std::memcpy(output.data() + (i + j) * sizeof(E), &result, sizeof(E));
      }
    }
    return output;
  });
}

void Append(const Bytes& part, Bytes& whole) {
  whole.insert(whole.end(), part.begin(), part.end());
}

Bytes AllReduced(const CheckedCall& call, AdditionOrder order,
                 const std::vector<Bytes>& inputs) {
  const bool tree = order == AdditionOrder::kTree ||
                    (order == AdditionOrder::kBySize &&
                     (call.uniform || call.count * SizeOf(call.type) <= 16384));
  if (tree) return Reduce(call, FoldOrder::kTree, 0, call.count, 0, inputs);
  // There is one segment for each rank; the first count % P have one element
  // more.
  const auto ranks = static_cast<int64_t>(inputs.size());
  Bytes all;
  int64_t begin = 0;
  for (int64_t k = 0; k < ranks; ++k) {
    const int64_t count = call.count / ranks + (k < call.count % ranks ? 1 : 0);
    Append(Reduce(call, FoldOrder::kChain, begin, count, static_cast<size_t>(k),
                  inputs),
           all);
    begin += count;
  }
  return all;
}

// Returns the rank's part of `whole`.
Bytes PartOf(const CheckedCall& call, const Bytes& whole, int rank) {
  const int64_t size = call.count * SizeOf(call.type);
  return {whole.begin() + rank * size, whole.begin() + (rank + 1) * size};
}

// A generator that gives the same numbers on every machine (SplitMix64).
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return MixBits(state_ += 0x9e3779b97f4a7c15); }

 private:
  uint64_t state_;
};

template <typename E>
E DrawElement(Draws& draws) {
  const uint64_t draw = draws.Next();
  E element;
  if (draw % 8 == 0) {
    uint64_t bits = draws.Next();
    // Sets all bits of the exponent in one draw of 32.
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

}  // namespace

double ElementAt(DataType type, const std::byte* element) {
  return WithDataType(type, [element]<typename E>(E value) {
    std::memcpy(&value, element, sizeof(E));
    return static_cast<double>(Widen(value));
  });
}

int64_t FirstDifference(const Bytes& a, const Bytes& b, DataType type) {
  const auto size = static_cast<size_t>(SizeOf(type));
  for (size_t i = 0; i < a.size(); i += size) {
    if (std::memcmp(&a[i], &b[i], size) == 0) continue;
    if (!std::isnan(ElementAt(type, &a[i])) ||
        !std::isnan(ElementAt(type, &b[i]))) {
      return static_cast<int64_t>(i / size);
    }
  }
  return -1;
}

void SetElement(DataType type, double value, std::byte* element) {
  WithDataType(type, [&]<typename E>(E) {
    const E rounded = RoundTo<E>(value);
    std::memcpy(element, &rounded, sizeof(E));
  });
}

Bytes Reference(DataType type, ReduceOp op, FoldOrder order,
                const std::vector<Bytes>& inputs) {
  return Reduce({Operation::kAllReduce, type, op}, order, 0,
                static_cast<int64_t>(inputs[0].size()) / SizeOf(type), 0,
                inputs);
}

std::optional<Bytes> ReferenceOutput(const CheckedCall& call,
                                     AdditionOrder order, int rank,
                                     const std::vector<Bytes>& inputs) {
  const bool is_root = rank == call.root;
  const auto root = static_cast<size_t>(call.root);
  Bytes all;
  switch (call.operation) {
    case Operation::kReduce:
      if (!is_root) return std::nullopt;
      [[fallthrough]];
    case Operation::kAllReduce:
      return AllReduced(call, order, inputs);
    case Operation::kReduceScatter:
      return Reduce(call, FoldOrder::kChain, rank * call.count, call.count,
                    static_cast<size_t>(rank) + 1, inputs);
    case Operation::kGather:
      if (!is_root) return std::nullopt;
      [[fallthrough]];
    case Operation::kAllGather:
      for (const Bytes& input : inputs) Append(input, all);
      return all;
    case Operation::kAllToAll:
      for (const Bytes& input : inputs) Append(PartOf(call, input, rank), all);
      return all;
    case Operation::kBroadcast:
      return inputs[root];
    case Operation::kScatter:
      return PartOf(call, inputs[root], rank);
    case Operation::kSend:
      if (rank != (call.root + call.hops) % static_cast<int>(inputs.size())) {
        return std::nullopt;
      }
      return inputs[root];
    case Operation::kReceive:
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
    case Operation::kReplay:
      break;
  }
  return std::nullopt;
}

std::vector<Bytes> DrawInputs(DataType type, int world_size, int64_t n) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < world_size; ++rank) {
    inputs.push_back(WithDataType(type, [&]<typename E>(E) {
      Draws draws(static_cast<uint64_t>(rank) + 17);
      Bytes bytes(static_cast<size_t>(n) * sizeof(E));
      for (size_t i = 0; i < bytes.size(); i += sizeof(E)) {
        const E element = DrawElement<E>(draws);
        std::memcpy(bytes.data() + i, &element, sizeof(E));
      }
      return bytes;
    }));
  }
  return inputs;
}

}  // namespace lockstep
