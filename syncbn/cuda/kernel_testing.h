// What the tests of kernels share: device memory between guards, cases, and
// comparison with a float64 loop.
#ifndef LOCKSTEP_SYNCBN_CUDA_KERNEL_TESTING_H_
#define LOCKSTEP_SYNCBN_CUDA_KERNEL_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"

namespace lockstep {

// Unit round-off of float32 arithmetic.
inline constexpr double kRoundOff = 0x1p-24;

// Half the distance between the neighbours of x in `type`, at least.
double RoundingError(DataType type, double x);

// x as `type` holds it: float32, float16 or bfloat16.
double Rounded(DataType type, double x);

// Elements in device memory, `offset` elements past a boundary of 256 bytes,
// with guards around.
class DeviceTensor {
 public:
  // Holds `values`, rounded.
  DeviceTensor(DataType type, const std::vector<double>& values,
               int64_t offset = 0);
  // Holds NaN.
  DeviceTensor(DataType type, int64_t count, int64_t offset = 0);
  ~DeviceTensor();
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  // As they were written.
  const std::vector<double>& values() const { return values_; }
  Buffer buffer() const;
  // What there is now. Fails the test if a guard has changed.
  std::vector<double> Read() const;

 private:
  DataType type_;
  std::vector<double> values_;
  int64_t start_;  // Byte of the first element.
  std::vector<std::byte> image_;
  std::byte* memory_ = nullptr;
};

// A record in device memory, written and read field by field.
struct RecordValues {
  int64_t count = 0;
  std::vector<double> mean;
  std::vector<double> second;
};
// Bytes of records of float32, one after the other; not zero in their gaps.
std::vector<std::byte> RecordBytes(const std::vector<RecordValues>& records);
class DeviceRecords {
 public:
  explicit DeviceRecords(const std::vector<RecordValues>& records);
  ~DeviceRecords();
  DeviceRecords(const DeviceRecords&) = delete;
  DeviceRecords& operator=(const DeviceRecords&) = delete;

  std::byte* data() const { return memory_; }
  // A record that a kernel has written since. Fails the test if its gaps are
  // not zero.
  RecordValues Read(int64_t channels, int index = 0) const;

 private:
  std::vector<std::byte> image_;
  std::byte* memory_ = nullptr;
};

// `count` normal numbers about `mean`.
std::vector<double> RandomValues(int64_t count, uint32_t seed, double mean = 0,
                                 double deviation = 1);

// The channel of element i.
int64_t ChannelOf(const ActivationShape& shape, int64_t i);

// Success if |got[i] - want[i]| <= tolerance(i) for all i; NaN is wanted where
// `want` is NaN, and only there.
testing::AssertionResult AllNear(
    const std::vector<double>& got, const std::vector<double>& want,
    const std::function<double(size_t)>& tolerance);

// Shapes with every kind of size: one, primes, 63 to 65, planes with and
// without whole vectors, several blocks to a channel. Without the layout.
std::vector<ActivationShape> AwkwardShapes();

// Elements by which tensors lie past a boundary: none, all alike.
inline constexpr int64_t kOffsets[] = {0, 1, 3};

using TypeAndLayout = std::tuple<DataType, Layout>;
inline constexpr DataType kGpuTypes[] = {DataType::kFloat32, DataType::kFloat16,
                                         DataType::kBFloat16};
inline constexpr Layout kLayouts[] = {Layout::kNchw, Layout::kNhwc};
std::string CaseName(const testing::TestParamInfo<TypeAndLayout>& info);
std::string Describe(const ActivationShape& shape);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_KERNEL_TESTING_H_
