#include "syncbn/cuda/kernel_testing.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {
namespace {

constexpr std::byte kCanary{0xa5};
constexpr int64_t kRoom = 256;
constexpr int64_t kFloatBytes = sizeof(float);

void WriteElement(DataType type, double value, std::byte* to) {
  const float narrow = static_cast<float>(value);
  if (type == DataType::kFloat16) {
    const __half half = __float2half_rn(narrow);
    std::memcpy(to, &half, sizeof(half));
  } else if (type == DataType::kBFloat16) {
    const __nv_bfloat16 half = __float2bfloat16_rn(narrow);
    std::memcpy(to, &half, sizeof(half));
  } else {
    std::memcpy(to, &narrow, sizeof(narrow));
  }
}

double ReadElement(DataType type, const std::byte* from) {
  if (type == DataType::kFloat16) {
    __half half;
    std::memcpy(&half, from, sizeof(half));
    return __half2float(half);
  }
  if (type == DataType::kBFloat16) {
    __nv_bfloat16 half;
    std::memcpy(&half, from, sizeof(half));
    return __bfloat162float(half);
  }
  float value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

StatisticsRecord LayoutOf(int64_t channels) {
  return {.channels = channels, .type = DataType::kFloat32};
}

// Whether a record has zeros behind its count and behind its last array.
bool HasClearGaps(const StatisticsRecord& layout, const std::byte* record) {
  const auto is_clear = [record](int64_t begin, int64_t end) {
    return std::all_of(record + begin, record + end,
                       [](std::byte b) { return b == std::byte{0}; });
  };
  const int64_t last = layout.second_offset() + layout.channels * kFloatBytes;
  return is_clear(sizeof(int64_t), layout.mean_offset()) &&
         is_clear(last, layout.size_bytes());
}

// Batch norm by its definition, in float64.

size_t ChannelAt(const Problem& p, size_t i) {
  return static_cast<size_t>(ChannelOf(p.shape, static_cast<int64_t>(i)));
}

double Normalized(const Problem& p, size_t i) {
  const size_t k = ChannelAt(p, i);
  return (p.x[i] - p.mean[k]) * p.inverse[k];
}

// Statistics in two passes, and y before ReLU.
void Normalize(double epsilon, Problem& p) {
  const double n = static_cast<double>(p.shape.values_per_channel());
  const auto channels = static_cast<size_t>(p.shape.c);
  p.mean.assign(channels, 0);
  p.variance.assign(channels, 0);
  p.inverse.clear();
  for (size_t i = 0; i < p.x.size(); ++i) p.mean[ChannelAt(p, i)] += p.x[i] / n;
  for (size_t i = 0; i < p.x.size(); ++i) {
    const double d = p.x[i] - p.mean[ChannelAt(p, i)];
    p.variance[ChannelAt(p, i)] += d * d / n;
  }
  for (const double v : p.variance) {
    p.inverse.push_back(1 / std::sqrt(v + epsilon));
  }
  p.y.clear();
  for (size_t i = 0; i < p.x.size(); ++i) {
    const size_t k = ChannelAt(p, i);
    p.y.push_back(Normalized(p, i) * p.weight[k] + p.bias[k] + p.residual[i]);
  }
}

// ReLU, and the gradients.
void GoBack(bool relu, Problem& p) {
  const double n = static_cast<double>(p.shape.values_per_channel());
  std::vector<double> sums(p.mean.size()), products(p.mean.size());
  for (size_t i = 0; i < p.x.size(); ++i) {
    const size_t k = ChannelAt(p, i);
    const bool passes = !relu || p.y[i] > 0;
    p.g.push_back(passes ? p.dy[i] : 0);
    if (!passes) p.y[i] = 0;
    sums[k] += p.g[i];
    products[k] += p.g[i] * Normalized(p, i);
  }
  for (size_t i = 0; i < p.x.size(); ++i) {
    const size_t k = ChannelAt(p, i);
    p.dx.push_back(p.weight[k] * p.inverse[k] *
                   (p.g[i] - sums[k] / n - Normalized(p, i) * products[k] / n));
  }
}

}  // namespace

double RoundingError(DataType type, double x) {
  const double size = std::abs(x);
  if (type == DataType::kFloat16) return std::max(size * 0x1p-11, 0x1p-25);
  if (type == DataType::kBFloat16) return size * 0x1p-8 + 0x1p-134;
  return size * kRoundOff + 0x1p-150;
}

double Rounded(DataType type, double x) {
  std::byte bytes[sizeof(float)];
  WriteElement(type, x, bytes);
  return ReadElement(type, bytes);
}

std::vector<double> RoundedTo(DataType type, std::vector<double> values) {
  for (double& value : values) value = Rounded(type, value);
  return values;
}

DeviceTensor::DeviceTensor(DataType type, const std::vector<double>& values,
                           int64_t offset)
    : type_(type), values_(values), start_(kRoom + offset * SizeOf(type)) {
  const int64_t bytes = static_cast<int64_t>(values.size()) * SizeOf(type);
  image_.assign(static_cast<size_t>(start_ + bytes + kRoom), kCanary);
  for (size_t i = 0; i < values.size(); ++i) {
    std::byte* const at =
        image_.data() + start_ + static_cast<int64_t>(i) * SizeOf(type);
    WriteElement(type, values[i], at);
    values_[i] = ReadElement(type, at);
  }
  EXPECT_EQ(cudaMalloc(&memory_, image_.size()), cudaSuccess);
  EXPECT_EQ(
      cudaMemcpy(memory_, image_.data(), image_.size(), cudaMemcpyHostToDevice),
      cudaSuccess);
}

DeviceTensor::DeviceTensor(DataType type, int64_t count, int64_t offset)
    : DeviceTensor(
          type, std::vector<double>(static_cast<size_t>(count), std::nan("")),
          offset) {}

DeviceTensor::~DeviceTensor() { EXPECT_EQ(cudaFree(memory_), cudaSuccess); }

Buffer DeviceTensor::buffer() const {
  return {memory_ + start_, static_cast<int64_t>(values_.size()), type_};
}

std::vector<double> DeviceTensor::Read() const {
  std::vector<std::byte> image(image_.size());
  EXPECT_EQ(
      cudaMemcpy(image.data(), memory_, image.size(), cudaMemcpyDeviceToHost),
      cudaSuccess);
  const auto is_canary = [](std::byte b) { return b == kCanary; };
  EXPECT_TRUE(std::all_of(image.begin(), image.begin() + start_, is_canary))
      << "wrote before the elements";
  EXPECT_TRUE(std::all_of(image.end() - kRoom, image.end(), is_canary))
      << "wrote behind the elements";
  std::vector<double> values(values_.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ReadElement(
        type_, image.data() + start_ + static_cast<int64_t>(i) * SizeOf(type_));
  }
  return values;
}

std::vector<std::byte> RecordBytes(const std::vector<RecordValues>& records) {
  std::vector<std::byte> bytes;
  for (const RecordValues& record : records) {
    const StatisticsRecord layout =
        LayoutOf(static_cast<int64_t>(record.mean.size()));
    std::vector<std::byte> one(static_cast<size_t>(layout.size_bytes()),
                               kCanary);
    std::memcpy(one.data(), &record.count, sizeof(record.count));
    for (int64_t c = 0; c < layout.channels; ++c) {
      const size_t i = static_cast<size_t>(c);
      WriteElement(DataType::kFloat32, record.mean[i],
                   one.data() + layout.mean_offset() + 4 * c);
      WriteElement(DataType::kFloat32, record.second[i],
                   one.data() + layout.second_offset() + 4 * c);
    }
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  return bytes;
}

DeviceRecords::DeviceRecords(const std::vector<RecordValues>& records)
    : image_(RecordBytes(records)) {
  EXPECT_EQ(cudaMalloc(&memory_, image_.size()), cudaSuccess);
  EXPECT_EQ(
      cudaMemcpy(memory_, image_.data(), image_.size(), cudaMemcpyHostToDevice),
      cudaSuccess);
}

DeviceRecords::~DeviceRecords() { EXPECT_EQ(cudaFree(memory_), cudaSuccess); }

RecordValues DeviceRecords::Read(int64_t channels, int index) const {
  std::vector<std::byte> image(image_.size());
  EXPECT_EQ(
      cudaMemcpy(image.data(), memory_, image.size(), cudaMemcpyDeviceToHost),
      cudaSuccess);
  const StatisticsRecord layout = LayoutOf(channels);
  const std::byte* const begin = image.data() + index * layout.size_bytes();
  EXPECT_TRUE(HasClearGaps(layout, begin)) << "left a gap as it was";
  RecordValues record;
  std::memcpy(&record.count, begin, sizeof(record.count));
  for (int64_t c = 0; c < channels; ++c) {
    record.mean.push_back(
        ReadElement(DataType::kFloat32, begin + layout.mean_offset() + 4 * c));
    record.second.push_back(ReadElement(
        DataType::kFloat32, begin + layout.second_offset() + 4 * c));
  }
  return record;
}

std::vector<double> RandomValues(int64_t count, uint32_t seed, double mean,
                                 double deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = normal(generator);
  return values;
}

BackwardValues RandomBackwardValues(const ActivationShape& shape, double mean,
                                    double deviation_of_means) {
  BackwardValues in;
  in.x = RandomValues(shape.size(), 1, mean);
  in.dy = RandomValues(shape.size(), 2);
  in.y = RandomValues(shape.size(), 3);
  for (size_t i = 0; i < in.y.size(); i += 5) in.y[i] = 0;
  for (size_t i = 3; i < in.y.size(); i += 17) in.y[i] = std::nan("");
  in.saved.count = 7;
  in.saved.mean = RoundedTo(DataType::kFloat32,
                            RandomValues(shape.c, 6, mean, deviation_of_means));
  in.saved.second =
      RoundedTo(DataType::kFloat32, RandomValues(shape.c, 7, 2, 0.2));
  return in;
}

DeviceBackward::DeviceBackward(DataType type, BackwardValues& values,
                               int64_t offset, int64_t dy_offset)
    : x(type, values.x, offset),
      y(type, values.y, offset),
      dy(type, values.dy, offset + dy_offset),
      saved({values.saved}) {
  values.x = x.values();
  values.y = y.values();
  values.dy = dy.values();
}

BatchNormKernels::BackwardCall DeviceBackward::Call(
    const ActivationShape& shape, bool relu) const {
  BatchNormKernels::BackwardCall call;
  call.shape = shape;
  call.relu = relu;
  call.x = x.buffer();
  if (relu) call.y = y.buffer();
  call.dy = dy.buffer();
  call.saved = saved.data();
  return call;
}

int64_t ChannelOf(const ActivationShape& shape, int64_t i) {
  return shape.layout == Layout::kNchw ? i / shape.hw % shape.c : i % shape.c;
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

std::vector<ActivationShape> AwkwardShapes() {
  return {{1, 1, 1},   {2, 1, 1},    {1, 2, 1},     {5, 3, 1},    {1, 1, 7},
          {3, 2, 4},   {2, 3, 49},   {1, 5, 63},    {2, 7, 64},   {1, 2, 65},
          {67, 8, 1},  {3, 63, 5},   {2, 64, 9},    {1, 65, 17},  {4, 4, 16},
          {40, 3, 13}, {1, 1, 9001}, {2, 2, 17001}, {1, 3, 22003}};
}

std::string CaseName(const testing::TestParamInfo<TypeAndLayout>& info) {
  return absl::StrCat(Name(std::get<0>(info.param)),
                      Name(std::get<1>(info.param)));
}

std::string Describe(const ActivationShape& shape) {
  return absl::StrCat("n=", shape.n, " c=", shape.c, " hw=", shape.hw, " ",
                      Name(shape.layout));
}

Problem MakeProblem(const ProblemOptions& options) {
  Problem p;
  p.shape = options.shape;
  const int64_t size = p.shape.size();
  p.x = RoundedTo(options.type, RandomValues(size, 1, options.mean));
  p.residual = RoundedTo(options.type, RandomValues(size, 2));
  p.dy = RoundedTo(options.type, RandomValues(size, 3));
  p.weight = RoundedTo(DataType::kFloat32, RandomValues(p.shape.c, 4, 1, 0.2));
  p.bias = RoundedTo(DataType::kFloat32, RandomValues(p.shape.c, 5));
  Normalize(options.epsilon, p);
  // Rounding must not decide what ReLU does.
  for (size_t i = 0; i < p.y.size(); ++i) {
    if (std::abs(p.y[i]) < 0.1) {
      p.residual[i] = Rounded(options.type, p.residual[i] + 0.5);
    }
  }
  Normalize(options.epsilon, p);
  GoBack(options.relu, p);
  return p;
}

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

ProblemErrors::ProblemErrors(const Problem& p) {
  const double inverse = Largest(p.inverse);
  const double weight = Largest(p.weight);
  const double g = Largest(p.g);
  const double n = static_cast<double>(p.shape.values_per_channel());
  double m = 0;  // The largest normalised x.
  for (size_t i = 0; i < p.x.size(); ++i) {
    m = std::max(m, std::abs(Normalized(p, i)));
  }
  mean = 64 * kRoundOff * Largest(p.x);
  scale = 56 * kRoundOff + mean * inverse;
  normalized = mean * inverse + m * scale;
  y = weight * normalized +
      8 * kRoundOff * (weight * m + Largest(p.bias) + Largest(p.residual));
  dx = weight * inverse *
       (scale * g * (2 + m * m) + 128 * kRoundOff * g +
        2 * m * g * (normalized + 128 * kRoundOff * m));
  gradient = n * g * (normalized + 128 * kRoundOff * (m + 1));
}

}  // namespace lockstep
