// The tests that the kernels of every device must pass. Each operation is
// compared with loops in float64, within the bounds of the device's arithmetic.
#ifndef LOCKSTEP_SYNCBN_TESTING_KERNEL_SUITE_H_
#define LOCKSTEP_SYNCBN_TESTING_KERNEL_SUITE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/data_types.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/testing/device_tensor.h"
#include "syncbn/testing/numbers.h"

namespace lockstep {

// The largest errors of the mean and M2 of a channel.
struct MomentErrors {
  double mean;
  double m2;
};

struct KernelsUnderTest {
  // Returns null, with the reason in the test's log, if there is no such
  // device.
  std::unique_ptr<BatchNormKernels> (*make)();
  std::vector<Layout> layouts;
  // The layouts of these shapes are ignored; `large` is used only for
  // reductions.
  std::vector<ActivationShape> shapes;
  std::vector<ActivationShape> large;
  // Returns the error bounds for values of at most `largest`, in arithmetic
  // with unit round-off u.
  MomentErrors (*moment_errors)(const Moments<double>& exact, double largest,
                                double u);
  // Returns the error bound of a sum of n terms, relative to the sum of their
  // absolute values.
  double (*sum_errors)(int64_t n, double u);
  // The number of roundings of dx, relative to the sizes of its terms.
  double input_gradient_roundings;
  // Whether the moments of equal values are exactly their mean and M2 = 0.
  bool exact_of_equal_values;
};

struct KernelsCase {
  const KernelsUnderTest* kernels;
  DataType type;
  Layout layout;
};
// Returns one case for each type in each of the kernels' layouts.
std::vector<KernelsCase> CasesOf(const KernelsUnderTest* kernels,
                                 const std::vector<DataType>& types);
std::string CaseName(const testing::TestParamInfo<KernelsCase>& info);

// Returns the shape in that layout. For kNchw16c, rounds the channels up to
// whole blocks of 16, and takes fewer pixels in exchange if the shape has many
// elements.
ActivationShape InLayout(ActivationShape shape, Layout layout);

// Each device instantiates this test over its cases.
class KernelsTest : public testing::TestWithParam<KernelsCase> {
 protected:
  void SetUp() override;
  // Return the kernels' shapes in the case's layout, each once. Shapes of at
  // most 700 elements are also tried at other alignments.
  std::vector<ActivationShape> Shapes() const;
  std::vector<ActivationShape> LargeShapes() const;
  std::vector<ActivationShape> SmallShapes() const;

  std::unique_ptr<BatchNormKernels> kernels_;
};

inline constexpr int64_t kSmallShape = 700;
// Returns offsets, in elements after a boundary, that leave a head and a tail
// of single elements.
inline std::vector<int64_t> OffsetsOf(DataType type) {
  return {1, 16 / SizeOf(type) - 1};
}

// The expected numbers, each with its tolerance.
struct Wanted {
  std::vector<double> values, tolerance;

  void Add(double value, double error) {
    values.push_back(value);
    tolerance.push_back(error);
  }
  testing::AssertionResult Holds(const std::vector<double>& got) const {
    return AllNear(got, values, [&](size_t i) { return tolerance[i]; });
  }
};

// Runs the controls of every reference. A reference must accept its own
// numbers. It must reject them if one is lost or is off by twice its tolerance.
inline void ExpectRejectsErrors(const Wanted& wanted, size_t i) {
  EXPECT_TRUE(wanted.Holds(wanted.values));
  for (const double off : {std::nan(""), 2 * wanted.tolerance[i]}) {
    std::vector<double> wrong = wanted.values;
    wrong[i] += off;
    EXPECT_FALSE(wanted.Holds(wrong));
  }
}

inline size_t ChannelAt(const ActivationShape& shape, size_t i) {
  return static_cast<size_t>(ChannelOf(shape, static_cast<int64_t>(i)));
}

// Returns a record of 7 values, with random means and with inverse deviations
// about 2.
inline RecordValues RandomSaved(int64_t channels, DataType type,
                                double mean = 0, double deviation = 1) {
  const DataType statistics = StatisticsTypeOf(type);
  return {7, RoundedTo(statistics, RandomValues(channels, 11, mean, deviation)),
          RoundedTo(statistics, RandomValues(channels, 12, 2, 0.2))};
}

// The inputs of the backward operations. y has zeros, and NaN, which ReLU's
// gradient must let through.
struct BackwardValues {
  // mean: the mean of x, in deviations, and of the saved means.
  BackwardValues(const ActivationShape& shape, DataType type, double mean)
      : shape(shape),
        type(type),
        x(RoundedTo(type, RandomValues(shape.size(), 1, mean))),
        y(RoundedTo(type, RandomValues(shape.size(), 2))),
        dy(RoundedTo(type, RandomValues(shape.size(), 3, 0.1))),
        weight(RoundedTo(StatisticsTypeOf(type), RandomValues(shape.c, 4, 1))),
        sums(RoundedTo(StatisticsTypeOf(type),
                       RandomValues(2 * shape.c, 5, 0, 5))),
        saved(RandomSaved(shape.c, type, mean, mean == 0 ? 1 : 0.1)) {
    for (size_t i = 0; i < y.size(); i += 5) y[i] = 0;
    for (size_t i = 3; i < y.size(); i += 17) y[i] = std::nan("");
  }
  double g(bool relu, size_t i) const { return relu && y[i] <= 0 ? 0 : dy[i]; }

  ActivationShape shape;
  DataType type;
  std::vector<double> x, y, dy;
  std::vector<double> weight, sums;
  RecordValues saved;
};

// BackwardValues in the device's memory. Tensors lie `offset` elements after a
// boundary, and dy `dy_offset` elements further.
struct DeviceBackward {
  DeviceBackward(const BackwardValues& in, int64_t offset, int64_t dy_offset)
      : x(in.type, in.x, offset),
        y(in.type, in.y, offset),
        dy(in.type, in.dy, offset + dy_offset),
        weight(StatisticsTypeOf(in.type), in.weight),
        saved({in.saved}, StatisticsTypeOf(in.type)) {}

  BatchNormKernels::BackwardCall Call(const ActivationShape& shape, bool relu,
                                      bool affine) const {
    BatchNormKernels::BackwardCall call;
    call.shape = shape;
    call.relu = relu;
    call.x = x.buffer();
    if (relu) call.y = y.buffer();
    call.dy = dy.buffer();
    if (affine) call.weight = weight.buffer();
    call.saved = saved.buffer();
    return call;
  }

  const DeviceTensor x, y, dy, weight;
  const DeviceRecords saved;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_TESTING_KERNEL_SUITE_H_
