// What the class adds to its parts, whose numbers their own tests check: that
// the bits are the same on any number of threads.
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/test_activations.h"

// Of the OpenMP runtime, which the kernels bring along.
extern "C" void omp_set_num_threads(int count);

namespace lockstep {
namespace {

// A layer's forward and backward pass.
struct Step {
  Step(const ActivationShape& shape, DataType type)
      : x(shape, type, /*seed=*/1, /*center=*/0.25),
        residual(shape, type, /*seed=*/2, /*center=*/0),
        dy(shape, type, /*seed=*/3, /*center=*/0),
        y(shape, type),
        dx(shape, type),
        dresidual(shape, type),
        weight(TestParameters(shape.c, StatisticsTypeOf(type), 4, 0.5, 1.5)),
        sums(2 * shape.c, StatisticsTypeOf(type)),
        record(shape.c, type),
        saved(shape.c, type) {}

  void Run(CpuBatchNormKernels& kernels) {
    EXPECT_THAT(
        kernels.ComputeMoments(x.shape, x.array.buffer(), record.data()),
        IsOk());
    EXPECT_THAT(
        kernels.Merge(record.layout(), record.data(), 1, {.epsilon = 1e-5},
                      RunningStatistics(), saved.data()),
        IsOkAndHolds(x.shape.values_per_channel()));
    BatchNormKernels::NormalizeCall normalize;
    normalize.shape = x.shape;
    normalize.relu = true;
    normalize.x = x.array.buffer();
    normalize.residual = residual.array.buffer();
    normalize.weight = weight.buffer();
    normalize.saved = saved.data();
    normalize.y = y.array.buffer();
    EXPECT_THAT(kernels.Normalize(normalize), IsOk());
    BatchNormKernels::BackwardCall backward;
    backward.shape = x.shape;
    backward.relu = true;
    backward.x = x.array.buffer();
    backward.y = y.array.buffer();
    backward.dy = dy.array.buffer();
    backward.weight = weight.buffer();
    backward.saved = saved.data();
    EXPECT_THAT(
        kernels.BackwardReduce(backward, sums.buffer(), Buffer(), Buffer()),
        IsOk());
    EXPECT_THAT(
        kernels.BackwardInput(backward, sums.buffer(), dx.array.buffer(),
                              dresidual.array.buffer()),
        IsOk());
  }

  bool SameBits(const Step& other) const {
    return record.SameBits(other.record) && saved.SameBits(other.saved) &&
           y.array.SameBits(other.y.array) && sums.SameBits(other.sums) &&
           dx.array.SameBits(other.dx.array) &&
           dresidual.array.SameBits(other.dresidual.array);
  }

  TestActivations x, residual, dy, y, dx, dresidual;
  GuardedArray weight;
  GuardedArray sums;
  TestRecord record;
  TestRecord saved;
};

TEST(CpuBatchNormKernelsTest, BitsDoNotDependOnThreadsOrInstructions) {
  CpuBatchNormKernels kernels;
  CpuBatchNormKernels baseline(VectorUnit::kBaseline);
  for (const ActivationCase& test_case : LargeActivationCases()) {
    omp_set_num_threads(1);
    Step want(test_case.shape, test_case.type);
    want.Run(baseline);
    for (int threads : {2, 5}) {
      omp_set_num_threads(threads);
      Step step(test_case.shape, test_case.type);
      step.Run(kernels);
      EXPECT_TRUE(step.SameBits(want))
          << Name(test_case) << " on " << threads << " threads";
    }
  }
}

// The control: one value that differs in its last place is seen.
TEST(CpuBatchNormKernelsTest, BitsDependOnTheValues) {
  CpuBatchNormKernels kernels;
  const ActivationShape shape = {.n = 2, .c = 3, .hw = 4};
  Step a(shape, DataType::kFloat64);
  Step b(shape, DataType::kFloat64);
  b.x.array.Set(7, b.x.array.Get(7) * (1 + 0x1p-52));
  a.Run(kernels);
  b.Run(kernels);
  EXPECT_FALSE(a.SameBits(b));
}

TEST(CpuBatchNormKernelsTest, AllocatesOnCacheLines) {
  CpuBatchNormKernels kernels;
  for (int64_t bytes : {0, 1, 64, 1000}) {
    const absl::StatusOr<std::shared_ptr<std::byte>> memory =
        kernels.Allocate(bytes);
    ASSERT_THAT(memory, IsOk());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->get()) % 64, 0u);
  }
}

}  // namespace
}  // namespace lockstep
