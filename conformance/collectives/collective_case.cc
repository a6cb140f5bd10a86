#include "conformance/collectives/collective_case.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/slice.h"
#include "collectives/collective.h"

namespace lockstep::conformance {
namespace {

constexpr Operation kOperations[] = {
    Operation::kAllReduce, Operation::kReduce,    Operation::kReduceScatter,
    Operation::kAllGather, Operation::kBroadcast, Operation::kScatter,
    Operation::kGather,    Operation::kAllToAll,  Operation::kSend};

// With this count there is a case for every root, otherwise only for the last
// rank.
constexpr int64_t kEveryRoot = 3;

// A little over 16 KiB, where the order of additions changes, and odd.
int64_t LargeCount(DataType type) { return (17 << 10) / SizeOf(type) + 3; }

bool CanBeInPlace(Operation operation) {
  return operation != Operation::kBroadcast &&
         operation != Operation::kAllToAll && operation != Operation::kSend;
}

class Cases {
 public:
  explicit Cases(int world_size) : world_size_(world_size) {}

  std::vector<CollectiveCase> All() {
    for (const Operation operation : kOperations) {
      if (operation == Operation::kSend && world_size_ == 1) continue;
      for (const DataType type : kAllDataTypes) {
        if (!Reduces(operation)) {
          AddCounts({operation, type});
          continue;
        }
        for (const ReduceOp op : kAllReduceOps) {
          AddCounts({operation, type, op});
        }
      }
    }
    cases_.push_back({Operation::kBarrier});
    return cases_;
  }

 private:
  void AddCounts(CollectiveCase call) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{67},
                                LargeCount(call.type)}) {
      call.count = count;
      AddPlaces(call);
    }
    call.count = 48;
    call.values = ValueKind::kSpecial;
    AddPlaces(call);
    call.values = ValueKind::kRough;
    if (call.operation == Operation::kAllReduce) {
      call.count = LargeCount(call.type);
      call.uniform = call.in_place = true;
      cases_.push_back(call);
    }
    if (call.operation != Operation::kAllGather) return;
    call.unequal = true;
    for (const int64_t count : {int64_t{1}, LargeCount(call.type)}) {
      call.count = count;
      AddPlaces(call);
    }
  }

  void AddPlaces(CollectiveCase call) {
    call.misalignment = call.count == 67 ? 1 : 0;
    AddRoots(call);
    if (!CanBeInPlace(call.operation)) return;
    call.in_place = true;
    AddRoots(call);
  }

  void AddRoots(CollectiveCase call) {
    const bool every = HasRoot(call.operation) && call.count == kEveryRoot;
    for (int root = every ? 0 : world_size_ - 1; root < world_size_; ++root) {
      call.root = HasRoot(call.operation) ? root : 0;
      AddDistances(call, every);
    }
  }

  void AddDistances(CollectiveCase call, bool every) {
    const bool all = call.operation == Operation::kSend && every;
    for (int distance = 1; distance < (all ? world_size_ : 2); ++distance) {
      call.distance = distance;
      cases_.push_back(call);
    }
  }

  const int world_size_;
  std::vector<CollectiveCase> cases_;
};

uint64_t Mix(uint64_t x) {
  x = (x ^ 0x5851f42d4c957f2d) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 32);
}

// Returns +-[1, 2) times a power of two from 1/16 to 8. For a product the power
// is from 1/2 to 1, so that eight factors stay in the range of a float16.
double RoughReal(ReduceOp op, uint64_t random) {
  constexpr double kPowers[] = {0.0625, 0.125, 0.25, 0.5, 1, 2, 4, 8};
  const double mantissa = 1 + static_cast<double>(random >> 12) * 0x1p-52;
  const double power = op == ReduceOp::kProduct
                           ? ((random >> 1 & 1) != 0 ? 0.5 : 1)
                           : kPowers[random >> 1 & 7];
  return ((random & 1) != 0 ? -mantissa : mantissa) * power;
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

// Returns 0, 1, -1 (or the largest unsigned), the smallest or the largest
// number of a type, as bits.
uint64_t SpecialInteger(DataType type, uint64_t random) {
  const uint64_t ones = ~uint64_t{0} >> (64 - 8 * SizeOf(type));
  const uint64_t smallest = type == DataType::kUInt8 ? 0 : ones / 2 + 1;
  const uint64_t specials[] = {0, 1, ones, smallest, ones - smallest};
  return specials[random % std::size(specials)];
}

void SetValue(const CollectiveCase& call, int rank, int64_t i,
              std::byte* element) {
  const uint64_t random =
      Mix(static_cast<uint64_t>(i) * 64 + static_cast<uint64_t>(rank));
  const bool special = call.values == ValueKind::kSpecial;
  if (call.type == DataType::kInt32 || call.type == DataType::kInt64 ||
      call.type == DataType::kUInt8) {
    const uint64_t bits =
        special ? SpecialInteger(call.type, random) : random >> 7;
    // Little endian, as on every machine that runs this test.
    std::memcpy(element, &bits, static_cast<size_t>(SizeOf(call.type)));
    return;
  }
  SetElement(call.type,
             special ? kSpecialReals[random % std::size(kSpecialReals)]
                     : RoughReal(call.op, random),
             element);
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

}  // namespace

bool HasRoot(Operation operation) {
  return operation == Operation::kReduce ||
         operation == Operation::kBroadcast ||
         operation == Operation::kScatter || operation == Operation::kGather ||
         operation == Operation::kSend;
}

int DestinationOf(const CollectiveCase& call, int world_size) {
  return (call.root + call.distance) % world_size;
}

std::string ToString(const CollectiveCase& call) {
  std::string text = absl::StrCat(Name(call.operation), "(", Name(call.type),
                                  "[", call.count, "]");
  if (Reduces(call.operation)) absl::StrAppend(&text, ", ", Name(call.op));
  if (HasRoot(call.operation)) absl::StrAppend(&text, ", root ", call.root);
  if (call.operation == Operation::kSend) {
    absl::StrAppend(&text, " to +", call.distance);
  }
  if (call.unequal) absl::StrAppend(&text, ", unequal");
  if (call.uniform) absl::StrAppend(&text, ", uniform");
  absl::StrAppend(&text, ")");
  if (call.in_place) absl::StrAppend(&text, ", in place");
  if (call.misalignment != 0) {
    absl::StrAppend(&text, ", ", call.misalignment, " byte off");
  }
  if (call.values == ValueKind::kSpecial) {
    absl::StrAppend(&text, ", special values");
  }
  return text;
}

std::vector<CollectiveCase> CollectiveCases(int world_size) {
  return Cases(world_size).All();
}

std::vector<CollectiveCase> SomeCollectiveCases(int world_size, uint64_t salt) {
  std::vector<CollectiveCase> cases = SliceOf(
      CollectiveCases(world_size), 4 * static_cast<uint64_t>(world_size), salt);
  if (IsExhaustive()) return cases;
  CollectiveCase call;
  const auto add = [&](Operation operation) {
    if (operation == Operation::kSend && world_size == 1) return;
    call.operation = operation;
    call.type = kAllDataTypes[salt++ % std::size(kAllDataTypes)];
    call.count = LargeCount(call.type);
    call.root = HasRoot(operation) ? world_size - 1 : 0;
    cases.push_back(call);
  };
  std::for_each(std::begin(kOperations), std::end(kOperations), add);
  call.unequal = true;
  add(Operation::kAllGather);
  cases.push_back({Operation::kBarrier});
  return cases;
}

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
  const int64_t count = InputCount(call, world_size, rank);
  const int64_t size = SizeOf(call.type);
  Bytes input(static_cast<size_t>(count * size));
  for (int64_t i = 0; i < count; ++i) {
    SetValue(call, rank, i, input.data() + i * size);
  }
  return input;
}

std::optional<Bytes> OutputOf(const CollectiveCase& call, AdditionOrder order,
                              int world_size, int rank,
                              const InputMistake& taken) {
  std::vector<Bytes> inputs;
  for (int place = 0; place < world_size; ++place) {
    const int from =
        taken.ranks.empty() ? place : taken.ranks[static_cast<size_t>(place)];
    Bytes input = InputOf(call, world_size, from);
    const int64_t element = SizeOf(call.type);
    const int64_t last_part =
        element *
        LastPartOf(static_cast<int64_t>(input.size()) / element, world_size);
    if (from == taken.twice) {
      const ReduceOp op =
          call.op == ReduceOp::kAverage ? ReduceOp::kSum : call.op;
      const Bytes twice =
          Reference(call.type, op, FoldOrder::kChain, {input, input});
      const int64_t begin = taken.last_part ? last_part : 0;
      std::copy(twice.begin() + begin, twice.end(), input.begin() + begin);
    }
    if (from == taken.unwritten) {
      std::fill(input.begin() + last_part, input.end(), std::byte{0});
    }
    inputs.push_back(std::move(input));
  }
  return ReferenceOutput({.operation = call.operation,
                          .type = call.type,
                          .op = call.op,
                          .count = call.count,
                          .root = call.root,
                          .hops = call.distance,
                          .uniform = call.uniform},
                         order, rank, inputs);
}

std::optional<std::string> Difference(const CollectiveCase& call,
                                      const std::byte* got, const Bytes& want) {
  const auto size = static_cast<size_t>(SizeOf(call.type));
  for (size_t i = 0; i < want.size(); i += size) {
    if (std::memcmp(got + i, want.data() + i, size) == 0) continue;
    const double a = ElementAt(call.type, got + i);
    const double b = ElementAt(call.type, want.data() + i);
    if (std::isnan(a) && std::isnan(b)) continue;
    return absl::StrCat("element ", i / size, " is ", a, " in place of ", b);
  }
  return std::nullopt;
}

}  // namespace lockstep::conformance
