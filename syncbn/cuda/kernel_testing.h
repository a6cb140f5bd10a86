// What the tests of kernels share: device memory between guards, cases,
// comparison with a float64 loop, and the float64 reference of tests over
// several ranks.
#ifndef LOCKSTEP_SYNCBN_CUDA_KERNEL_TESTING_H_
#define LOCKSTEP_SYNCBN_CUDA_KERNEL_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "base/data_types.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {

// Unit round-off of float32 arithmetic.
inline constexpr double kRoundOff = 0x1p-24;

// Half the distance between the neighbours of x in `type`, at least.
double RoundingError(DataType type, double x);

// x as `type` holds it: float32, float16 or bfloat16.
double Rounded(DataType type, double x);
std::vector<double> RoundedTo(DataType type, std::vector<double> values);

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

// What the backward kernels read: y has zeros and, since they count as passed,
// NaN.
struct BackwardValues {
  std::vector<double> x, y, dy;
  RecordValues saved;
};
// The means are of x, whose deviation is 1, and of the saved means.
BackwardValues RandomBackwardValues(const ActivationShape& shape, double mean,
                                    double deviation_of_means);

// Such values in device memory. Tensors lie `offset` elements past a boundary,
// dy `dy_offset` more.
struct DeviceBackward {
  // Rounds `values` to what the device holds.
  DeviceBackward(DataType type, BackwardValues& values, int64_t offset,
                 int64_t dy_offset);
  // Without weight.
  BatchNormKernels::BackwardCall Call(const ActivationShape& shape,
                                      bool relu) const;

  DeviceTensor x, y, dy;
  DeviceRecords saved;
};

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
// Instantiated over kGpuTypes and kLayouts by LOCKSTEP_TYPES_AND_LAYOUTS.
class KernelTest : public GpuTest,
                   public testing::WithParamInterface<TypeAndLayout> {};
std::string CaseName(const testing::TestParamInfo<TypeAndLayout>& info);
std::string Describe(const ActivationShape& shape);

#define LOCKSTEP_TYPES_AND_LAYOUTS(suite)                        \
  INSTANTIATE_TEST_SUITE_P(                                      \
      All, suite,                                                \
      testing::Combine(testing::ValuesIn(::lockstep::kGpuTypes), \
                       testing::ValuesIn(::lockstep::kLayouts)), \
      ::lockstep::CaseName)

// A batch, for tests over several ranks.
struct ProblemOptions {
  ActivationShape shape;  // Of the whole batch.
  DataType type = DataType::kFloat32;
  bool relu = true;  // There is always a residual.
  double mean = 3;   // Of x, whose deviation is 1.
  double epsilon = 1e-3;
};

// What one float64 layer makes of it. All but the statistics are in `type`, as
// rounded; weight and bias are [c].
struct Problem {
  ActivationShape shape;
  std::vector<double> x, residual, dy, weight, bias;
  std::vector<double> mean, inverse, variance;
  std::vector<double> y;  // No output before ReLU is within 0.1 of 0.
  std::vector<double> g;  // dy behind ReLU, which is dresidual too.
  std::vector<double> dx;
};
Problem MakeProblem(const ProblemOptions& options);

// The largest absolute value; 0 of none.
double Largest(const std::vector<double>& values);

// Errors of float32 as they go through the formulas. Of some tens of values a
// mean has gone through at most 16 additions and 8 merges of 6 errors each (see
// reductions_test.cc): 64 round-offs of the largest x. M2 through 4 for each,
// and 2 errors of the mean for a deviation, of which its root takes half.
struct ProblemErrors {
  explicit ProblemErrors(const Problem& p);

  double mean;
  double scale;       // Of the inverse deviation, relative.
  double normalized;  // Of x.
  double y;
  double dx;
  double gradient;  // Of weight and bias.
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_KERNEL_TESTING_H_
