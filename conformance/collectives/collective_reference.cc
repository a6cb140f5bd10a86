// 16-bit floats by their definition.
#include "conformance/collectives/collective_reference.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep {

// std::nearbyint rounds to nearest, ties to even, by default.
uint16_t Encode(const Format& format, double x) {
  const int mantissa_bits = format.precision - 1;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const int infinity = (format.max_exponent * 2 + 1) << mantissa_bits;
  if (std::isnan(x)) return static_cast<uint16_t>(sign | infinity | 1);
  x = std::fabs(x);
  if (std::isinf(x)) return static_cast<uint16_t>(sign | infinity);
  if (x == 0) return sign;
  int exponent = std::ilogb(x);
  if (exponent < format.min_exponent) exponent = format.min_exponent;
  // Units in the last place: carries into the exponent by itself.
  const int units = static_cast<int>(
      std::nearbyint(x * PowerOfTwo(mantissa_bits - exponent)));
  const int bits = ((exponent - format.min_exponent) << mantissa_bits) + units;
  return static_cast<uint16_t>(sign | (bits < infinity ? bits : infinity));
}

double Decode(const Format& format, uint16_t bits) {
  const int mantissa_bits = format.precision - 1;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent == format.max_exponent * 2 + 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) {
    return sign * mantissa * PowerOfTwo(format.min_exponent - mantissa_bits);
  }
  return sign * (mantissa + (1 << mantissa_bits)) *
         PowerOfTwo(exponent - 1 + format.min_exponent - mantissa_bits);
}

// What a collective call must give. Shares no code with the algorithms: neither
// their index arithmetic nor their rounding.
namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ 0x5851f42d4c957f2d) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 32);
}

// +-[1, 2) times a power of two from 1/16 to 8; of a product, from 1/2 to 1, so
// that eight of them stay in the range of a float16.
double RoughReal(ReduceOp op, uint64_t random) {
  const double mantissa = 1 + static_cast<double>(random >> 12) * 0x1p-52;
  const int exponent = op == ReduceOp::kProduct
                           ? -static_cast<int>(random >> 1 & 1)
                           : static_cast<int>(random >> 1 & 7) - 4;
  return ((random & 1) != 0 ? -mantissa : mantissa) * PowerOfTwo(exponent);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSpecialReals[] = {0.0,
                                    -0.0,
                                    kInfinity,
                                    -kInfinity,
                                    std::numeric_limits<double>::quiet_NaN(),
                                    1e-40,
                                    -6e-8,
                                    65504,
                                    -3e38,
                                    1,
                                    -1,
                                    0.333};

template <typename T>
T ValueAt(const CollectiveCase& call, int rank, int64_t i) {
  const uint64_t random =
      Mix(static_cast<uint64_t>(i) * 64 + static_cast<uint64_t>(rank));
  if constexpr (kIsInteger<T>) {
    static constexpr T kSpecials[] = {0, 1, static_cast<T>(-1),
                                      std::numeric_limits<T>::min(),
                                      std::numeric_limits<T>::max()};
    return call.values == ValueKind::kSpecial ? kSpecials[random % 5]
                                              : static_cast<T>(random >> 7);
  } else {
    const double real = call.values == ValueKind::kSpecial
                            ? kSpecialReals[random % std::size(kSpecialReals)]
                            : RoughReal(call.op, random);
    using A = typename Arithmetic<T>::Accumulator;
    return Arithmetic<T>::Narrow(static_cast<A>(real));
  }
}

// The segment that element i of an AllReduce lies in: the first count % P
// segments have one more.
int SegmentOfElement(int64_t count, int world_size, int64_t i) {
  int segment = 0;
  int64_t end = 0;
  while (true) {
    end += count / world_size + (segment < count % world_size ? 1 : 0);
    if (i < end) return segment;
    ++segment;
  }
}

template <typename T>
class Reference {
 public:
  Reference(const CollectiveCase& call, int world_size,
            SumOrder order = SumOrder::kBySize, const Taken& taken = {})
      : call_(call), world_size_(world_size), order_(order), taken_(taken) {}

  void AppendInput(int rank, int64_t begin, int64_t count) {
    const std::span<T> added = Add(count);
    for (int64_t i = 0; i < count; ++i) {
      added[static_cast<size_t>(i)] = ValueAt<T>(call_, rank, begin + i);
    }
  }

  void AppendAllReduced() {
    const bool tree =
        order_ == SumOrder::kBySize &&
        (call_.uniform || call_.count * SizeOf(call_.type) <= 16384);
    AppendReduced(0, tree, [this](int64_t i) {
      return SegmentOfElement(call_.count, world_size_, i);
    });
  }

  void AppendReducedPart(int rank) {
    AppendReduced(rank * call_.count, /*tree=*/false,
                  [this, rank](int64_t) { return (rank + 1) % world_size_; });
  }

  void AppendGathered() {
    const std::vector<int64_t> counts = CountsOf(call_, world_size_);
    for (int rank = 0; rank < world_size_; ++rank) {
      AppendInput(rank, 0, counts[static_cast<size_t>(rank)]);
    }
  }

  void AppendFromEach(int rank) {
    for (int from = 0; from < world_size_; ++from) {
      AppendInput(from, rank * call_.count, call_.count);
    }
  }

  // All that was appended.
  Bytes AsBytes() const {
    const auto bytes = std::as_bytes(std::span(elements_));
    return Bytes(bytes.begin(), bytes.end());
  }

 private:
  // So many elements more, to be written.
  std::span<T> Add(int64_t count) {
    elements_.resize(elements_.size() + static_cast<size_t>(count));
    return std::span(elements_).last(static_cast<size_t>(count));
  }

  // Elements from `begin` on of a reduction over all ranks; first(i) is the
  // rank that ring order begins with.
  template <typename First>
  void AppendReduced(int64_t begin, bool tree, First first) {
    if constexpr (kIsInteger<T>) {
      if (call_.op == ReduceOp::kAverage) {
        return AppendReducedAs<int64_t>(begin, tree, first);
      }
    }
    AppendReducedAs<typename Arithmetic<T>::Accumulator>(begin, tree, first);
  }

  template <typename A, typename First>
  void AppendReducedAs(int64_t begin, bool tree, First first) {
    std::vector<A> x(static_cast<size_t>(world_size_));
    const std::span<T> added = Add(call_.count);
    for (int64_t i = 0; i < call_.count; ++i) {
      SetInputs(x, begin + i);
      A result = tree ? InTreeOrder<A>(call_.op, x)
                      : InRingOrder<A>(call_.op, x, first(begin + i));
      if (call_.op == ReduceOp::kAverage) {
        result /= static_cast<A>(world_size_);
      }
      added[static_cast<size_t>(i)] = Narrow(result);
    }
  }

  // x becomes element i of each rank.
  template <typename A>
  void SetInputs(std::vector<A>& x, int64_t i) const {
    for (size_t place = 0; place < x.size(); ++place) {
      const int rank =
          taken_.ranks.empty() ? static_cast<int>(place) : taken_.ranks[place];
      T value = ValueAt<T>(call_, rank, i);
      if (rank == taken_.twice) {
        const auto wide = static_cast<A>(Arithmetic<T>::Widen(value));
        value = Narrow(Combine(call_.op, wide, wide));
      }
      x[place] = static_cast<A>(Arithmetic<T>::Widen(value));
    }
  }

  template <typename A>
  static T Narrow(A x) {
    if constexpr (kIsInteger<T>) {
      return static_cast<T>(x);
    } else {
      return Arithmetic<T>::Narrow(x);
    }
  }

  const CollectiveCase& call_;
  const int world_size_;
  const SumOrder order_;
  const Taken taken_;
  std::vector<T> elements_;
};

template <typename T>
std::optional<Bytes> OutputAs(const CollectiveCase& call, SumOrder order,
                              int world_size, int rank, const Taken& taken) {
  Reference<T> reference(call, world_size, order, taken);
  switch (call.operation) {
    case Operation::kAllReduce:
      reference.AppendAllReduced();
      break;
    case Operation::kReduce:
      if (rank != call.root) return std::nullopt;
      reference.AppendAllReduced();
      break;
    case Operation::kReduceScatter:
      reference.AppendReducedPart(rank);
      break;
    case Operation::kAllGather:
      reference.AppendGathered();
      break;
    case Operation::kGather:
      if (rank != call.root) return std::nullopt;
      reference.AppendGathered();
      break;
    case Operation::kBroadcast:
      reference.AppendInput(call.root, 0, call.count);
      break;
    case Operation::kScatter:
      reference.AppendInput(call.root, rank * call.count, call.count);
      break;
    case Operation::kAllToAll:
      reference.AppendFromEach(rank);
      break;
    case Operation::kSend:
      if (rank != DestinationOf(call, world_size)) return std::nullopt;
      reference.AppendInput(call.root, 0, call.count);
      break;
    case Operation::kReceive:
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
      return std::nullopt;
  }
  return reference.AsBytes();
}

// Calls fn with an element of the type.
template <typename Fn>
auto WithType(DataType type, Fn fn) {
  switch (type) {
    case DataType::kFloat64:
      return fn(double());
    case DataType::kFloat32:
      return fn(float());
    case DataType::kFloat16:
      return fn(Float16());
    case DataType::kBFloat16:
      return fn(BFloat16());
    case DataType::kInt32:
      return fn(int32_t());
    case DataType::kInt64:
      return fn(int64_t());
    case DataType::kUInt8:
      break;
  }
  return fn(uint8_t());
}

int64_t InputCount(const CollectiveCase& call, int world_size, int rank) {
  switch (call.operation) {
    case Operation::kReduceScatter:
    case Operation::kScatter:
    case Operation::kAllToAll:
      return call.count * world_size;
    case Operation::kAllGather:
      return CountsOf(call, world_size)[static_cast<size_t>(rank)];
    default:
      return call.count;
  }
}

template <typename T>
std::optional<std::string> DifferenceAs(const std::byte* got,
                                        const Bytes& want) {
  for (size_t i = 0; i * sizeof(T) < want.size(); ++i) {
    T a;
    T b;
    std::memcpy(&a, got + i * sizeof(T), sizeof(T));
    std::memcpy(&b, want.data() + i * sizeof(T), sizeof(T));
    if (std::memcmp(&a, &b, sizeof(T)) == 0) continue;
    const auto wide = [](T x) {
      return static_cast<double>(Arithmetic<T>::Widen(x));
    };
    if (std::isnan(wide(a)) && std::isnan(wide(b))) continue;
    return absl::StrCat("element ", i, " is ", wide(a), " in place of ",
                        wide(b));
  }
  return std::nullopt;
}

}  // namespace

std::vector<int64_t> CountsOf(const CollectiveCase& call, int world_size) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < world_size; ++rank) {
    counts.push_back(!call.unequal ? call.count
                     : rank == 0   ? 0
                                   : call.count + rank);
  }
  return counts;
}

Bytes InputOf(const CollectiveCase& call, int world_size, int rank) {
  return WithType(call.type, [&](auto element) {
    Reference<decltype(element)> reference(call, world_size);
    reference.AppendInput(rank, 0, InputCount(call, world_size, rank));
    return reference.AsBytes();
  });
}

std::optional<Bytes> OutputOf(const CollectiveCase& call, SumOrder order,
                              int world_size, int rank, const Taken& taken) {
  return WithType(call.type, [&](auto element) {
    return OutputAs<decltype(element)>(call, order, world_size, rank, taken);
  });
}

std::optional<std::string> Difference(const CollectiveCase& call,
                                      const std::byte* got, const Bytes& want) {
  return WithType(call.type, [&](auto element) {
    return DifferenceAs<decltype(element)>(got, want);
  });
}

}  // namespace lockstep
