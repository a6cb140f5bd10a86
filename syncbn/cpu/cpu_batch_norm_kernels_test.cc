// What the class adds to its operations, whose numbers the other tests check:
// how loops are cut and shared by threads, and that the bits are the same on
// any number of them.
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/column_plan.h"
#include "syncbn/cpu/test_activations.h"
#include "syncbn/cpu/workspace.h"

// Of the OpenMP runtime, which the kernels bring along.
extern "C" void omp_set_num_threads(int count);

namespace lockstep {
namespace {

TEST(ColumnPlanTest, HasEachValueOnce) {
  for (Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    for (int64_t n : {0, 1, 5, 270}) {
      for (int64_t c : {1, 2, 3, 16, 63, 64, 65, 130, 2048, 4095, 5000}) {
        for (int64_t hw : {1, 2, 49, 784, 9001}) {
          const ActivationShape shape = {
              .n = n, .c = c, .hw = hw, .layout = layout};
          const ColumnPlan plan = MakeColumnPlan(shape);
          EXPECT_EQ(plan.series * plan.period, c);
          EXPECT_EQ(plan.rows * plan.group + plan.rest, n * hw);
          EXPECT_GE(plan.rest, 0);
          EXPECT_LT(plan.rest, plan.group);
          EXPECT_LE(plan.group, kMaxPixelsPerRow);
          EXPECT_EQ(plan.SegmentBegin(0), 0);
          EXPECT_EQ(plan.SegmentBegin(plan.segments), plan.rows);
        }
      }
    }
  }
}

TEST(ColumnPlanTest, SegmentsAreOfWholeTilesAndNotEmpty) {
  const ColumnPlan plan =
      MakeColumnPlan({.n = 64, .c = 64, .hw = 785, .layout = Layout::kNhwc});
  EXPECT_EQ(plan.segments, 24);
  for (int64_t s = 0; s < plan.segments; ++s) {
    EXPECT_LT(plan.SegmentBegin(s), plan.SegmentBegin(s + 1));
    EXPECT_EQ(plan.SegmentBegin(s) % kTileRows, 0);
  }
}

TEST(ColumnPlanTest, RowsAreWholeVectors) {
  for (int64_t c = 1; c <= 256; ++c) {
    EXPECT_EQ(PixelsPerRow(c) * c % 16, 0) << c;
    EXPECT_GE(PixelsPerRow(c) * c, 256) << c;
    EXPECT_LE(PixelsPerRow(c), kMaxPixelsPerRow) << c;
  }
  EXPECT_EQ(PixelsPerRow(512), 1);
  EXPECT_EQ(PixelsPerRow(4095), 1);
}

constexpr int64_t kMuchWork = 100 * kWorkOfThread;

struct Part {
  int64_t begin;
  int64_t end;
  int thread;
};

std::vector<Part> PartsOf(int64_t items) {
  std::vector<Part> parts;
  // The thread sanitizer sees this one whether or not abseil is built with it.
  std::mutex mutex;
  ParallelFor(items, kMuchWork, [&](int64_t begin, int64_t end, int thread) {
    const std::lock_guard<std::mutex> lock(mutex);
    parts.push_back({begin, end, thread});
  });
  return parts;
}

TEST(ParallelForTest, VisitsEachItemOnceOnDifferentThreads) {
  for (int threads : {1, 2, 3, 8}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(MaxParallelThreads(), threads);
    for (int64_t items : {0, 1, 2, 3, 7, 8, 100}) {
      std::vector<int> visits(static_cast<size_t>(items));
      std::set<int> seen;
      for (const Part& part : PartsOf(items)) {
        EXPECT_LT(part.begin, part.end);
        EXPECT_GE(part.thread, 0);
        EXPECT_LT(part.thread, threads);
        EXPECT_TRUE(seen.insert(part.thread).second);
        for (int64_t i = part.begin; i < part.end; ++i) {
          ++visits[static_cast<size_t>(i)];
        }
      }
      EXPECT_EQ(visits, std::vector<int>(static_cast<size_t>(items), 1))
          << items << " items on " << threads << " threads";
    }
  }
}

TEST(ParallelForTest, WritesAreSeenBeforeAndAfter) {
  omp_set_num_threads(4);
  std::vector<int64_t> numbers(1000);
  for (int64_t round = 0; round < 100; ++round) {
    for (int64_t& number : numbers) ++number;
    ParallelFor(1000, kMuchWork,
                [&](int64_t begin, int64_t end, int /*thread*/) {
                  for (int64_t i = begin; i < end; ++i) {
                    numbers[static_cast<size_t>(i)] += i;
                  }
                });
  }
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(numbers[static_cast<size_t>(i)], 100 * (i + 1));
  }
}

TEST(ParallelForTest, LittleWorkHasFewThreads) {
  omp_set_num_threads(4);
  for (int64_t work : {int64_t{0}, kWorkOfThread, 2 * kWorkOfThread - 1}) {
    int calls = 0;
    ParallelFor(10, work, [&](int64_t begin, int64_t end, int thread) {
      ++calls;
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, 10);
      EXPECT_EQ(thread, 0);
    });
    EXPECT_EQ(calls, 1);
  }
}

TEST(ParallelForTest, IsAPlainCallInsideAnother) {
  omp_set_num_threads(2);
  std::vector<std::vector<Part>> parts(2);
  ParallelFor(2, kMuchWork, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t i = begin; i < end; ++i) {
      parts[static_cast<size_t>(i)] = PartsOf(10);
    }
  });
  for (const std::vector<Part>& inner : parts) {
    ASSERT_EQ(inner.size(), 1u);
    EXPECT_EQ(inner[0].begin, 0);
    EXPECT_EQ(inner[0].end, 10);
    EXPECT_EQ(inner[0].thread, 0);
  }
}

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
    Normalize(kernels, y.array.buffer());
    EXPECT_THAT(
        kernels.BackwardReduce(Backward(), sums.buffer(), Buffer(), Buffer()),
        IsOk());
    InputGradient(kernels, dx.array.buffer(), dresidual.array.buffer());
  }

  void Normalize(CpuBatchNormKernels& kernels, Buffer to) {
    BatchNormKernels::NormalizeCall normalize;
    normalize.shape = x.shape;
    normalize.relu = true;
    normalize.x = x.array.buffer();
    normalize.residual = residual.array.buffer();
    normalize.weight = weight.buffer();
    normalize.saved = saved.data();
    normalize.y = to;
    EXPECT_THAT(kernels.Normalize(normalize), IsOk());
  }

  void InputGradient(CpuBatchNormKernels& kernels, Buffer to_dx,
                     Buffer to_dresidual) {
    EXPECT_THAT(
        kernels.BackwardInput(Backward(), sums.buffer(), to_dx, to_dresidual),
        IsOk());
  }

  BatchNormKernels::BackwardCall Backward() {
    BatchNormKernels::BackwardCall backward;
    backward.shape = x.shape;
    backward.relu = true;
    backward.x = x.array.buffer();
    backward.y = y.array.buffer();
    backward.dy = dy.array.buffer();
    backward.weight = weight.buffer();
    backward.saved = saved.data();
    return backward;
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

// Float32 on cache lines, between guard zones.
class AlignedFloats {
 public:
  AlignedFloats(CpuBatchNormKernels& kernels, int64_t size) : size_(size) {
    auto memory = kernels.Allocate((size + 2 * kGuard) * sizeof(float));
    EXPECT_THAT(memory, IsOk());
    memory_ = *std::move(memory);
    std::memset(memory_.get(), kPattern, (size + 2 * kGuard) * sizeof(float));
  }

  Buffer buffer() { return {data(), size_, DataType::kFloat32}; }
  bool HasBits(const GuardedArray& want) {
    return std::memcmp(data(), want.data(), size_ * sizeof(float)) == 0;
  }
  bool GuardsAreIntact() {
    const auto intact = [](const std::byte* guard) {
      return std::all_of(guard, guard + kGuard * sizeof(float),
                         [](std::byte b) { return b == std::byte{kPattern}; });
    };
    return intact(memory_.get()) && intact(data() + size_ * sizeof(float));
  }

 private:
  static constexpr int64_t kGuard = 16;
  static constexpr uint8_t kPattern = 0xa5;

  std::byte* data() { return memory_.get() + kGuard * sizeof(float); }

  int64_t size_;
  std::shared_ptr<std::byte> memory_;
};

// Outputs of several MiB on cache lines are written past the caches; those of
// Step are not, since they are not aligned.
TEST(CpuBatchNormKernelsTest, LargeAlignedOutputsHaveTheSameBits) {
  for (const VectorUnit unit : {BestVectorUnit(), VectorUnit::kBaseline}) {
    CpuBatchNormKernels kernels(unit);
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      // Channels last the last run is short, and no whole line long.
      const ActivationShape shape = {
          .n = 3,
          .c = 65,
          .hw = layout == Layout::kNchw ? 80 * 80 : 79 * 81,
          .layout = layout};
      ASSERT_GT(shape.size() * 4, 4 << 20);
      Step step(shape, DataType::kFloat32);
      step.Run(kernels);
      AlignedFloats y(kernels, shape.size());
      AlignedFloats dx(kernels, shape.size());
      AlignedFloats dresidual(kernels, shape.size());
      step.Normalize(kernels, y.buffer());
      step.InputGradient(kernels, dx.buffer(), dresidual.buffer());
      EXPECT_TRUE(y.HasBits(step.y.array)) << Name(layout);
      EXPECT_TRUE(dx.HasBits(step.dx.array)) << Name(layout);
      EXPECT_TRUE(dresidual.HasBits(step.dresidual.array)) << Name(layout);
      EXPECT_FALSE(dx.HasBits(step.dresidual.array)) << Name(layout);
      for (AlignedFloats* output : {&y, &dx, &dresidual}) {
        EXPECT_TRUE(output->GuardsAreIntact()) << Name(layout);
      }
    }
  }
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
