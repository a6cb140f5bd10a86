// The tests that the kernels of every device pass: each operation against loops
// in float64, within the bounds that the device's arithmetic allows.
#ifndef LOCKSTEP_SYNCBN_TESTING_KERNEL_SUITE_H_
#define LOCKSTEP_SYNCBN_TESTING_KERNEL_SUITE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/data_types.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/moments.h"
#include "syncbn/testing/device_tensor.h"

namespace lockstep {

// How far the mean and M2 of a channel may be off.
struct MomentErrors {
  double mean;
  double m2;
};

struct KernelsUnderTest {
  // Null, with the reason in the test's log, where the device is not there.
  std::unique_ptr<BatchNormKernels> (*make)();
  // Whose layouts do not matter; `large` is for reductions alone.
  std::vector<ActivationShape> shapes;
  std::vector<ActivationShape> large;
  // Of values that are at most `largest`, in arithmetic of unit round-off u.
  MomentErrors (*moment_errors)(const Moments<double>& exact, double largest,
                                double u);
  // Of a sum of n terms, in parts of the sum of their sizes.
  double (*sum_errors)(int64_t n, double u);
  // Roundings of dx, in parts of the sizes of its terms.
  double input_gradient_roundings;
  // Whether equal values have exactly their mean, and M2 = 0.
  bool exact_of_equal_values;
  // Whether the gradient of constant statistics leaves x out, which may then be
  // anything; else it adds 0 * x.
  bool leaves_out_x_of_constants = false;
};

struct KernelsCase {
  const KernelsUnderTest* kernels;
  DataType type;
  Layout layout;
};
// In every layout.
std::vector<KernelsCase> CasesOf(const KernelsUnderTest* kernels,
                                 const std::vector<DataType>& types);
std::string CaseName(const testing::TestParamInfo<KernelsCase>& info);

// Each device instantiates it over its cases.
class KernelsTest : public testing::TestWithParam<KernelsCase> {
 protected:
  void SetUp() override;
  // The kernels' shapes in the case's layout; what is at most 700 elements is
  // tried at other alignments too.
  std::vector<ActivationShape> Shapes() const;
  std::vector<ActivationShape> SmallShapes() const;

  std::unique_ptr<BatchNormKernels> kernels_;
};

inline constexpr int64_t kSmallShape = 700;
// Elements past a boundary that leave a head and a tail of single elements.
std::vector<int64_t> OffsetsOf(DataType type);

// Numbers, and how far each may be off.
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

size_t ChannelAt(const ActivationShape& shape, size_t i);

// Of 7 values: means, and inverse deviations about 2.
RecordValues RandomSaved(int64_t channels, DataType type, double mean = 0,
                         double deviation = 1);

// What the backward operations read: y has zeros and, since they count as let
// through, NaN.
struct BackwardValues {
  // mean: of x, in deviations, and of the saved means.
  BackwardValues(const ActivationShape& shape, DataType type, double mean);
  double g(bool relu, size_t i) const { return relu && y[i] <= 0 ? 0 : dy[i]; }

  ActivationShape shape;
  DataType type;
  std::vector<double> x, y, dy;
  std::vector<double> weight, sums;
  RecordValues saved;
};

// Such values in the device's memory. Tensors lie `offset` elements past a
// boundary, dy `dy_offset` more.
struct DeviceBackward {
  DeviceBackward(const BackwardValues& in, int64_t offset, int64_t dy_offset);

  BatchNormKernels::BackwardCall Call(const ActivationShape& shape, bool relu,
                                      bool affine) const;

  const DeviceTensor x, y, dy, weight;
  const DeviceRecords saved;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_TESTING_KERNEL_SUITE_H_
