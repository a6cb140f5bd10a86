// Encoding, guard zones and pseudo-random values.
#include "syncbn/cpu/test_activations.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {
namespace {

constexpr int64_t kGuard = 128;
constexpr std::byte kPattern{0xa5};

// splitmix64's mixing of a counter, as a number in [0, 1).
double Uniform(uint64_t seed, uint64_t i) {
  uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15 + i * 0xd1342543de82ef95;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

template <typename T>
void Put(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(value));
}

template <typename T>
T Take(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

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

double SmallestNumber(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return 0x1p-1074;
    case DataType::kFloat16:
      return 0x1p-24;
    case DataType::kBFloat16:
      return 0x1p-133;
    default:
      return 0x1p-149;
  }
}

GuardedArray::GuardedArray(int64_t size, DataType type)
    : size_(size),
      type_(type),
      bytes_(static_cast<size_t>(size * SizeOf(type) + 2 * kGuard + 64),
             kPattern) {
  // One element past a 64-byte boundary.
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data() + kGuard);
  offset_ = kGuard + static_cast<int64_t>(-address % 64) % 64 + SizeOf(type);
}

void GuardedArray::Set(int64_t i, double value) {
  std::byte* const to = data() + i * SizeOf(type_);
  switch (type_) {
    case DataType::kFloat64:
      return Put(value, to);
    case DataType::kFloat16:
      return Put(ToFloat16(static_cast<float>(value)), to);
    case DataType::kBFloat16:
      return Put(ToBFloat16(static_cast<float>(value)), to);
    default:
      return Put(static_cast<float>(value), to);
  }
}

double GuardedArray::Get(int64_t i) const {
  const std::byte* const from = data() + i * SizeOf(type_);
  switch (type_) {
    case DataType::kFloat64:
      return Take<double>(from);
    case DataType::kFloat16:
      return ToFloat(Take<Float16>(from));
    case DataType::kBFloat16:
      return ToFloat(Take<BFloat16>(from));
    default:
      return Take<float>(from);
  }
}

bool GuardedArray::GuardsAreIntact() const {
  const auto is_pattern = [](std::byte b) { return b == kPattern; };
  const auto begin = bytes_.begin() + offset_;
  return std::all_of(bytes_.begin(), begin, is_pattern) &&
         std::all_of(begin + size_ * SizeOf(type_), bytes_.end(), is_pattern);
}

bool GuardedArray::SameBits(const GuardedArray& other) const {
  return size_ == other.size_ && type_ == other.type_ &&
         std::memcmp(data(), other.data(),
                     static_cast<size_t>(size_ * SizeOf(type_))) == 0;
}

TestActivations::TestActivations(const ActivationShape& shape, DataType type,
                                 uint64_t seed, double center)
    : TestActivations(shape, type) {
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t c = 0; c < shape.c; ++c) {
      for (int64_t i = 0; i < shape.hw; ++i) {
        const int64_t at = Index(n, c, i);
        const double mean = center + static_cast<double>(c % 7) / 8;
        array.Set(at, mean + 2 * Uniform(seed, static_cast<uint64_t>(at)) - 1);
      }
    }
  }
}

int64_t TestActivations::Index(int64_t n, int64_t c, int64_t i) const {
  return shape.layout == Layout::kNchw ? (n * shape.c + c) * shape.hw + i
                                       : (n * shape.hw + i) * shape.c + c;
}

std::vector<double> TestActivations::Channel(int64_t c) const {
  std::vector<double> values;
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t i = 0; i < shape.hw; ++i) {
      values.push_back(array.Get(Index(n, c, i)));
    }
  }
  return values;
}

GuardedArray TestParameters(int64_t size, DataType type, uint64_t seed,
                            double low, double high) {
  GuardedArray array(size, type);
  for (int64_t i = 0; i < size; ++i) {
    array.Set(i, low + (high - low) * Uniform(seed, static_cast<uint64_t>(i)));
  }
  return array;
}

TestRecord::TestRecord(int64_t channels, DataType type)
    : layout_{.channels = channels, .type = StatisticsTypeOf(type)},
      blocks_(static_cast<size_t>(layout_.size_bytes() / 16 + 4)) {
  std::memset(blocks_.data(), static_cast<int>(kPattern), blocks_.size() * 16);
}

int64_t TestRecord::count() const { return Take<int64_t>(data()); }

void TestRecord::SetCount(int64_t count) { Put(count, data()); }

double TestRecord::Get(int64_t offset, int64_t c) const {
  return layout_.type == DataType::kFloat64
             ? Take<double>(data() + offset + c * 8)
             : Take<float>(data() + offset + c * 4);
}

void TestRecord::Set(int64_t offset, int64_t c, double value) {
  if (layout_.type == DataType::kFloat64) {
    Put(value, data() + offset + c * 8);
  } else {
    Put(static_cast<float>(value), data() + offset + c * 4);
  }
}

bool TestRecord::GuardIsIntact() const {
  return std::all_of(data() + layout_.size_bytes(),
                     data() + blocks_.size() * 16,
                     [](std::byte b) { return b == kPattern; });
}

bool TestRecord::SameBits(const TestRecord& other) const {
  return layout_.size_bytes() == other.layout_.size_bytes() &&
         std::memcmp(data(), other.data(),
                     static_cast<size_t>(layout_.size_bytes())) == 0;
}

void FillRecord(int64_t count, TestRecord& record) {
  record.SetCount(count);
  for (int64_t c = 0; c < record.layout().channels; ++c) {
    record.SetMean(c, 0.25 + static_cast<double>(c % 5) / 7);
    record.SetSecond(c, 1.7 + static_cast<double>(c % 3) / 5);
  }
}

BackwardInputs::BackwardInputs(const ActivationShape& shape, DataType type)
    : x(shape, type, /*seed=*/1, /*center=*/0.25),
      y(shape, type, /*seed=*/2, /*center=*/0),
      dy(shape, type, /*seed=*/3, /*center=*/0.1),
      weight(TestParameters(shape.c, StatisticsTypeOf(type), 4, 0.5, 1.5)),
      sums(TestParameters(2 * shape.c, StatisticsTypeOf(type), 5, -3, 3)),
      saved(shape.c, type) {
  for (int64_t i = 0; i < y.array.size(); i += 3) y.array.Set(i, 0);
  if (y.array.size() > 0) y.array.Set(y.array.size() / 2, std::nan(""));
  FillRecord(shape.values_per_channel() + 3, saved);
}

std::vector<ActivationCase> AllActivationCases() {
  std::vector<ActivationCase> cases;
  for (DataType type : {DataType::kFloat32, DataType::kFloat16,
                        DataType::kBFloat16, DataType::kFloat64}) {
    for (Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      for (int64_t c : {1, 3, 63, 64, 65, 130}) {
        for (const auto& [n, hw] : std::vector<std::pair<int64_t, int64_t>>{
                 {0, 4}, {1, 1}, {5, 1}, {3, 7}, {4, 49}, {2, 130}}) {
          cases.push_back({{.n = n, .c = c, .hw = hw, .layout = layout}, type});
        }
      }
    }
  }
  return cases;
}

std::vector<ActivationCase> LargeActivationCases() {
  std::vector<ActivationCase> cases;
  for (DataType type : {DataType::kFloat32, DataType::kFloat16,
                        DataType::kBFloat16, DataType::kFloat64}) {
    for (Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      cases.push_back({{.n = 3, .c = 16, .hw = 6001, .layout = layout}, type});
      cases.push_back({{.n = 7, .c = 1, .hw = 40'021, .layout = layout}, type});
      cases.push_back({{.n = 270, .c = 2, .hw = 600, .layout = layout}, type});
    }
  }
  return cases;
}

std::string Name(const ActivationCase& test_case) {
  const ActivationShape& shape = test_case.shape;
  return absl::StrCat(Name(test_case.type), " ", Name(shape.layout),
                      " n=", shape.n, " c=", shape.c, " hw=", shape.hw);
}

}  // namespace lockstep
