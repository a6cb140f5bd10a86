#include "syncbn/testing/device_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/testing/numbers.h"

namespace lockstep {
namespace {

constexpr char kCanary = '\xa5';
constexpr size_t kRoom = 256;

constexpr std::align_val_t kAlignment{64};

// The device is a function's static variable, since tests set it before main.
TestDevice& Device() {
  static TestDevice device = {
      [](size_t bytes) {
        return static_cast<std::byte*>(::operator new(bytes, kAlignment));
      },
      [](std::byte* memory) { ::operator delete(memory, kAlignment); },
      [](std::byte* to, const void* from, size_t bytes) {
        std::memcpy(to, from, bytes);
      },
      [](void* to, const std::byte* from, size_t bytes) {
        std::memcpy(to, from, bytes);
      }};
  return device;
}

// Returns whether a record has zeros after its count and after its last array.
bool HasClearGaps(const StatisticsRecord& layout, const std::byte* record) {
  const auto is_clear = [record](int64_t begin, int64_t end) {
    return std::all_of(record + begin, record + end,
                       [](std::byte b) { return b == std::byte{0}; });
  };
  const int64_t last =
      layout.second_offset() + layout.channels * SizeOf(layout.type);
  return is_clear(sizeof(int64_t), layout.mean_offset()) &&
         is_clear(last, layout.size_bytes());
}

}  // namespace

bool SetTestDevice(const TestDevice& device) {
  Device() = device;
  return true;
}

DeviceTensor::DeviceTensor(DataType type, const std::vector<double>& values,
                           int64_t offset)
    : type_(type),
      values_(values),
      start_(kRoom + static_cast<size_t>(offset * SizeOf(type))) {
  const size_t bytes = values.size() * static_cast<size_t>(SizeOf(type));
  image_.assign(start_ + bytes + kRoom, kCanary);
  const auto count = static_cast<int64_t>(values.size());
  const Buffer image(image_.data() + start_, count, type);
  for (int64_t i = 0; i < count; ++i) {
    SetNumber(image, i, values[static_cast<size_t>(i)]);
    values_[static_cast<size_t>(i)] = GetNumber(image, i);
  }
  memory_ = Device().allocate(image_.size());
  Device().write(memory_, image_.data(), image_.size());
}

DeviceTensor::DeviceTensor(DataType type, int64_t count, int64_t offset)
    : DeviceTensor(
          type, std::vector<double>(static_cast<size_t>(count), std::nan("")),
          offset) {}

DeviceTensor::~DeviceTensor() { Device().free(memory_); }

Buffer DeviceTensor::buffer() const {
  return {memory_ + start_, static_cast<int64_t>(values_.size()), type_};
}

std::string DeviceTensor::Bytes() const {
  std::string image(image_.size(), '\0');
  Device().read(image.data(), memory_, image.size());
  const size_t size = image.size() - start_ - kRoom;
  EXPECT_EQ(image.substr(0, start_), std::string(start_, kCanary))
      << "wrote before the elements";
  EXPECT_EQ(image.substr(start_ + size), std::string(kRoom, kCanary))
      << "wrote behind the elements";
  return image.substr(start_, size);
}

std::vector<double> DeviceTensor::Read() const {
  const std::string bytes = Bytes();
  const ConstBuffer elements(bytes.data(), buffer().count, type_);
  std::vector<double> values(values_.size());
  for (int64_t i = 0; i < elements.count; ++i) {
    values[static_cast<size_t>(i)] = GetNumber(elements, i);
  }
  return values;
}

RecordValues UnwrittenRecord(int64_t channels) {
  const std::vector<double> nan(static_cast<size_t>(channels), std::nan(""));
  return {-1, nan, nan};
}

DeviceRecords::DeviceRecords(const std::vector<RecordValues>& records,
                             DataType type)
    : layout_{.channels = static_cast<int64_t>(records[0].mean.size()),
              .type = type},
      image_(records.size() * static_cast<size_t>(layout_.size_bytes()) + kRoom,
             std::byte{static_cast<unsigned char>(kCanary)}) {
  std::byte* at = image_.data();
  for (const RecordValues& record : records) {
    const RecordAccess access(layout_, at);
    std::memcpy(at, &record.count, sizeof(record.count));
    for (int64_t c = 0; c < layout_.channels; ++c) {
      SetNumber(access.mean, c, record.mean[static_cast<size_t>(c)]);
      SetNumber(access.second, c, record.second[static_cast<size_t>(c)]);
    }
    at += layout_.size_bytes();
  }
  memory_ = Device().allocate(image_.size());
  Device().write(memory_, image_.data(), image_.size());
}

DeviceRecords::~DeviceRecords() { Device().free(memory_); }

RecordValues DeviceRecords::Read() const {
  std::vector<std::byte> image(image_.size());
  Device().read(image.data(), memory_, image.size());
  EXPECT_TRUE(HasClearGaps(layout_, image.data())) << "left a gap as it was";
  EXPECT_TRUE(std::equal(image.begin() + layout_.size_bytes(), image.end(),
                         image_.begin() + layout_.size_bytes()))
      << "wrote behind the record";
  const RecordAccess access(layout_, image.data());
  RecordValues record;
  record.count = access.count();
  for (int64_t c = 0; c < layout_.channels; ++c) {
    record.mean.push_back(GetNumber(access.mean, c));
    record.second.push_back(GetNumber(access.second, c));
  }
  return record;
}

LayerTensors::LayerTensors(const BatchNormOptions& options,
                           const ActivationShape& shape, DataType type,
                           const Values& values, int64_t offset,
                           int64_t gradient_offset, int64_t channel_offset)
    : options(options),
      shape(shape),
      x(type, values.x, offset),
      residual(type, values.residual, offset),
      dy(type, values.dy, gradient_offset),
      y(type, shape.size(), offset),
      dx(type, shape.size(), gradient_offset),
      dresidual(type, shape.size(), gradient_offset),
      weight(StatisticsTypeOf(type), values.weight, channel_offset),
      bias(StatisticsTypeOf(type), values.bias, channel_offset),
      dweight(StatisticsTypeOf(type), shape.c, channel_offset),
      dbias(StatisticsTypeOf(type), shape.c, channel_offset),
      mean(StatisticsTypeOf(type),
           std::vector<double>(static_cast<size_t>(shape.c), values.mean),
           channel_offset),
      variance(
          StatisticsTypeOf(type),
          std::vector<double>(static_cast<size_t>(shape.c), values.variance),
          channel_offset),
      saved({UnwrittenRecord(shape.c)}, StatisticsTypeOf(type)) {}

BatchNorm::ForwardBuffers LayerTensors::ForwardBuffers(const LayerCall& call) {
  const bool tracks = options.track_running_stats;
  return {.shape = shape,
          .training = call.training,
          .relu = call.relu,
          .x = x.buffer(),
          .residual = call.residual ? residual.buffer() : Buffer(),
          .weight = options.affine ? weight.buffer() : Buffer(),
          .bias = options.affine ? bias.buffer() : Buffer(),
          .running = tracks ? RunningStatistics{mean.buffer(),
                                                variance.buffer(), &batches}
                            : RunningStatistics(),
          .y = y.buffer(),
          .saved = saved.buffer()};
}

BatchNorm::BackwardBuffers LayerTensors::BackwardBuffers(
    const LayerCall& call) const {
  return {.shape = shape,
          .training = call.training,
          .relu = call.relu,
          .x = x.buffer(),
          .y = y.buffer(),
          .dy = dy.buffer(),
          .weight = options.affine ? weight.buffer() : Buffer(),
          .saved = saved.buffer(),
          .dweight = options.affine ? dweight.buffer() : Buffer(),
          .dbias = options.affine ? dbias.buffer() : Buffer(),
          .dx = dx.buffer(),
          .dresidual = call.residual ? dresidual.buffer() : Buffer()};
}

absl::Status LayerTensors::Run(BatchNorm& layer, const LayerCall& call) {
  LOCKSTEP_RETURN_IF_ERROR(layer.Forward(ForwardBuffers(call)));
  int ready = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      layer.Backward(BackwardBuffers(call), [&] { ++ready; }));
  EXPECT_EQ(ready, 1);
  return absl::OkStatus();
}

std::vector<double> RandomValues(int64_t count, uint32_t seed, double mean,
                                 double deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = normal(generator);
  return values;
}

testing::AssertionResult AllNear(
    const std::vector<double>& got, const std::vector<double>& want,
    const std::function<double(size_t)>& tolerance) {
  if (got.size() != want.size()) {
    return testing::AssertionFailure()
           << got.size() << " elements, want " << want.size();
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    const double error = std::abs(got[i] - want[i]);
    if (got[i] == want[i] || error <= tolerance(i)) continue;
    return testing::AssertionFailure()
           << "element " << i << " is " << got[i] << ", want " << want[i]
           << " within " << tolerance(i);
  }
  return testing::AssertionSuccess();
}

std::string Describe(const ActivationShape& shape) {
  return absl::StrCat("n=", shape.n, " c=", shape.c, " hw=", shape.hw, " ",
                      Name(shape.layout));
}

}  // namespace lockstep
