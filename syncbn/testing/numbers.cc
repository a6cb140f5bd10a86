#include "syncbn/testing/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
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

constexpr std::align_val_t kAlignment{64};

// The record that belongs to a call; only read.
RecordAccess SavedOf(const ActivationShape& shape, DataType type,
                     const std::byte* saved) {
  return RecordAccess(RecordOf(shape.c, type), const_cast<std::byte*>(saved));
}

// Calls fn(place) for every element of a channel.
template <typename Fn>
void ForChannel(const ActivationShape& shape, int64_t c, Fn fn) {
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t i = 0; i < shape.hw; ++i) fn(PlaceOf(shape, n, c, i));
  }
}

double GradientAt(const BatchNormKernels::BackwardCall& call, int64_t at) {
  if (call.relu && GetNumber(call.y, at) <= 0) return 0;
  return GetNumber(call.dy, at);
}

double OrElse(ConstBuffer buffer, int64_t i, double otherwise) {
  return buffer.count == 0 ? otherwise : GetNumber(buffer, i);
}

void Enter(Buffer running, int64_t c, double weight, double value) {
  SetNumber(running, c, (1 - weight) * GetNumber(running, c) + weight * value);
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
  switch (type) {  // Half of the smallest number, if double can hold it.
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

void RecordAccess::set_count(int64_t count) const {
  std::memset(memory, 0, StatisticsRecord::kHeaderBytes);
  std::memcpy(memory, &count, sizeof(count));
}

int64_t PlaceOf(const ActivationShape& shape, int64_t n, int64_t c, int64_t i) {
  switch (shape.layout) {
    case Layout::kNchw:
      return (n * shape.c + c) * shape.hw + i;
    case Layout::kNhwc:
      return (n * shape.hw + i) * shape.c + c;
    case Layout::kNchw16c:
      return ((n * (shape.c / 16) + c / 16) * shape.hw + i) * 16 + c % 16;
  }
  return 0;
}

int64_t ChannelOf(const ActivationShape& shape, int64_t place) {
  switch (shape.layout) {
    case Layout::kNchw:
      return place / shape.hw % shape.c;
    case Layout::kNhwc:
      return place % shape.c;
    case Layout::kNchw16c:
      return place / (16 * shape.hw) % (shape.c / 16) * 16 + place % 16;
  }
  return 0;
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

absl::StatusOr<std::shared_ptr<std::byte>> PlainKernels::Allocate(
    int64_t bytes) {
  auto* const memory = static_cast<std::byte*>(
      ::operator new(static_cast<size_t>(bytes), kAlignment));
  return std::shared_ptr<std::byte>(
      memory, [](std::byte* p) { ::operator delete(p, kAlignment); });
}

absl::Status PlainKernels::ComputeMoments(const ActivationShape& shape,
                                          ConstBuffer x, std::byte* record) {
  const RecordAccess out = SavedOf(shape, x.type, record);
  out.set_count(shape.values_per_channel());
  for (int64_t c = 0; c < shape.c; ++c) {
    double sum = 0;
    ForChannel(shape, c, [&](int64_t at) { sum += GetNumber(x, at); });
    const double mean =
        out.count() == 0 ? 0 : sum / static_cast<double>(out.count());
    double m2 = 0;
    ForChannel(shape, c,
               [&](int64_t at) { m2 += std::pow(GetNumber(x, at) - mean, 2); });
    SetNumber(out.mean, c, mean);
    SetNumber(out.second, c, m2);
  }
  return absl::OkStatus();
}

absl::Status PlainKernels::Merge(const MergeCall& call) {
  std::vector<RecordAccess> all;
  int64_t count = 0;
  for (int rank = 0; rank < call.ranks; ++rank) {
    all.emplace_back(call.record, const_cast<std::byte*>(call.gathered) +
                                      rank * call.record.size_bytes());
    count += all.back().count();
  }
  const MergeOptions& options = call.options;
  const RunningStatistics& running = call.running;
  const RecordAccess out(call.record, call.saved);
  out.set_count(count);
  const double n = static_cast<double>(count);
  const bool enters = running.tracked() && count > 0 &&
                      !(count == 1 && options.refuses_one_value);
  for (int64_t c = 0; c < call.record.channels; ++c) {
    double mean = 0;
    for (const RecordAccess& r : all) {
      const auto k = static_cast<double>(r.count());
      if (count > 0) mean += GetNumber(r.mean, c) * k / n;
    }
    double m2 = 0;
    for (const RecordAccess& r : all) {
      if (r.count() == 0) continue;
      const double off = GetNumber(r.mean, c) - mean;
      m2 += GetNumber(r.second, c) + off * off * static_cast<double>(r.count());
    }
    const double variance = count > 0 ? m2 / n : 0;
    SetNumber(out.mean, c, mean);
    SetNumber(out.second, c, 1 / std::sqrt(variance + options.epsilon));
    if (!enters) continue;
    Enter(running.mean, c, options.weight_of_batch, mean);
    Enter(running.variance, c, options.weight_of_batch,
          options.unbiased_running_variance ? m2 / (n - 1) : variance);
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> PlainKernels::ReadCount(const std::byte* saved) {
  return StatisticsRecord::Count(saved);
}

absl::Status PlainKernels::UseRunning(const RunningCall& call) {
  const RecordAccess out(call.record, call.saved);
  out.set_count(0);
  for (int64_t c = 0; c < call.record.channels; ++c) {
    SetNumber(out.mean, c, GetNumber(call.running.mean, c));
    SetNumber(
        out.second, c,
        1 / std::sqrt(GetNumber(call.running.variance, c) + call.epsilon));
  }
  return absl::OkStatus();
}

absl::Status PlainKernels::Normalize(const NormalizeCall& call) {
  const RecordAccess saved =
      SavedOf(call.shape, call.x.type, call.saved.bytes());
  for (int64_t c = 0; c < call.shape.c; ++c) {
    const double mean = GetNumber(saved.mean, c);
    const double scale = GetNumber(saved.second, c) * OrElse(call.weight, c, 1);
    ForChannel(call.shape, c, [&](int64_t at) {
      double y = (GetNumber(call.x, at) - mean) * scale +
                 OrElse(call.bias, c, 0) + OrElse(call.residual, at, 0);
      if (call.relu && y <= 0) y = 0;
      SetNumber(call.y, at, y);
    });
  }
  return absl::OkStatus();
}

absl::Status PlainKernels::BackwardReduce(const BackwardCall& call) {
  const RecordAccess saved =
      SavedOf(call.shape, call.x.type, call.saved.bytes());
  for (int64_t c = 0; c < call.shape.c; ++c) {
    const double mean = GetNumber(saved.mean, c);
    double of_g = 0;
    double of_gz = 0;
    ForChannel(call.shape, c, [&](int64_t at) {
      const double g = GradientAt(call, at);
      of_g += g;
      of_gz += g * (GetNumber(call.x, at) - mean) * GetNumber(saved.second, c);
    });
    SetNumber(call.sums, c, of_g);
    SetNumber(call.sums, call.shape.c + c, of_gz);
    if (call.dbias.count > 0) SetNumber(call.dbias, c, of_g);
    if (call.dweight.count > 0) SetNumber(call.dweight, c, of_gz);
  }
  return absl::OkStatus();
}

absl::Status PlainKernels::BackwardInput(const BackwardCall& call) {
  const RecordAccess saved =
      SavedOf(call.shape, call.x.type, call.saved.bytes());
  const auto count = static_cast<double>(saved.count());
  for (int64_t c = 0; c < call.shape.c; ++c) {
    const double inverse = GetNumber(saved.second, c);
    const double share = count == 0 ? 0 : 1 / count;
    const double s0 = GetNumber(call.sums, c) * share;
    const double s1 = GetNumber(call.sums, call.shape.c + c) * share;
    ForChannel(call.shape, c, [&](int64_t at) {
      const double g = GradientAt(call, at);
      const double z =
          (GetNumber(call.x, at) - GetNumber(saved.mean, c)) * inverse;
      if (call.dresidual.count > 0) SetNumber(call.dresidual, at, g);
      SetNumber(call.dx, at,
                OrElse(call.weight, c, 1) * inverse *
                    (g - (count == 0 ? 0 : s0 + z * s1)));
    });
  }
  return absl::OkStatus();
}

}  // namespace lockstep
