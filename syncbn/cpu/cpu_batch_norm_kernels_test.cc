// Runs the suite of all kernels on the CPU. Tests how loops are cut and shared
// by threads, and that the bits are the same on any number of threads.
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "base/vector_unit.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/workspace.h"
#include "syncbn/testing/device_tensor.h"
#include "syncbn/testing/kernel_suite.h"

// A function of the OpenMP runtime, which the kernels link.
extern "C" void omp_set_num_threads(int count);

namespace lockstep {
namespace {

constexpr Layout kAllLayouts[] = {Layout::kNchw, Layout::kNhwc,
                                  Layout::kNchw16c};

TEST(ColumnPlanTest, HasEachValueOnce) {
  for (Layout layout : kAllLayouts) {
    for (int64_t n : {0, 1, 5, 270}) {
      for (int64_t c : {1, 2, 3, 16, 63, 64, 65, 130, 2048, 4095, 5000}) {
        for (int64_t hw : {1, 2, 49, 784, 9001}) {
          const ActivationShape shape = InLayout({n, c, hw}, layout);
          const ColumnPlan plan = MakeColumnPlan(shape);
          EXPECT_EQ(plan.series * plan.period, shape.c);
          EXPECT_EQ(plan.rows * plan.group + plan.rest,
                    shape.values_per_channel());
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

// A tile is a part of one plane, or whole planes.
TEST(ColumnPlanTest, TilesOfBlockedChannelsEndWherePlanesDo) {
  for (const int64_t n : {1, 3, 40}) {
    for (const int64_t hw : {2, 7, 16, 31, 49, 64, 65, 130, 784}) {
      const ColumnPlan plan = MakeColumnPlan({n, 32, hw, Layout::kNchw16c});
      EXPECT_EQ(plan.TileBegin(plan.tiles()), n * hw);
      for (int64_t tile = 0; tile < plan.tiles(); ++tile) {
        const int64_t begin = plan.TileBegin(tile);
        const int64_t end = plan.TileBegin(tile + 1);
        EXPECT_GT(end, begin);
        EXPECT_LE(end - begin, kTileRows);
        const bool is_part = begin / hw == (end - 1) / hw;
        EXPECT_TRUE(is_part || (begin % hw == 0 && end % hw == 0)) << hw;
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

  friend bool operator==(const Part&, const Part&) = default;
};

std::vector<Part> PartsOf(int64_t items, int64_t work = kMuchWork) {
  std::vector<Part> parts;
  // The thread sanitizer sees this mutex even if abseil is built without it.
  std::mutex mutex;
  ParallelFor(items, work, [&](int64_t begin, int64_t end, int thread) {
    const std::lock_guard<std::mutex> lock(mutex);
    parts.push_back({begin, end, thread});
  });
  return parts;
}

const std::vector<Part> kOnePart = {{.begin = 0, .end = 10, .thread = 0}};

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
    EXPECT_EQ(PartsOf(10, work), kOnePart) << work;
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
  EXPECT_EQ(parts, std::vector(2, kOnePart));
}

// The suite of all kernels.

// Returns the bounds that cpu_batch_norm_kernels.h derives.
MomentErrors ErrorsOfMoments(const Moments<double>& exact, double largest,
                             double u) {
  if (exact.count == 0) return {0, 0};
  const double n = static_cast<double>(exact.count);
  const double g = 20 * u;
  const double d = g * largest;
  const double merges = n / 32 + 74;
  const double e = 2 * merges * 0x1p-53 * largest;
  return {g * (std::sqrt(exact.m2 / n) + d) + e + u * std::abs(exact.mean),
          (5 * g + 4 * merges * 0x1p-53) * (exact.m2 + n * d * d) +
              3 * (std::sqrt(exact.m2 * n) * e + n * e * e)};
}

// Returns the bounds that the header derives, plus the roundings of merging in
// float64.
double ErrorsOfSums(int64_t n, double u) {
  return 23 * u + (static_cast<double>(n) / 32 + 74) * 0x1p-53;
}

std::vector<ActivationShape> Shapes() {
  std::vector<ActivationShape> shapes;
  for (const int64_t c : {1, 3, 63, 64, 65, 130}) {
    for (const auto& [n, hw] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 4}, {1, 1}, {5, 1}, {3, 7}, {9, 12}, {4, 49}, {2, 130}}) {
      shapes.push_back({n, c, hw});
    }
  }
  return shapes;
}

// dx is rounded eight times; one more rounding covers the products of these
// errors. Large shapes are cut into several segments and shared by threads.
const KernelsUnderTest kKernels = {
    .make = []() -> std::unique_ptr<BatchNormKernels> {
      return std::make_unique<CpuBatchNormKernels>();
    },
    .layouts = {std::begin(kAllLayouts), std::end(kAllLayouts)},
    .shapes = Shapes(),
    .large = {{3, 16, 6001}, {7, 1, 40021}, {270, 2, 600}},
    .moment_errors = ErrorsOfMoments,
    .sum_errors = ErrorsOfSums,
    .input_gradient_roundings = 9,
    .exact_of_equal_values = true};

const std::vector<DataType> kTypes = {DataType::kFloat32, DataType::kFloat16,
                                      DataType::kBFloat16, DataType::kFloat64};

INSTANTIATE_TEST_SUITE_P(Cpu, KernelsTest,
                         testing::ValuesIn(CasesOf(&kKernels, kTypes)),
                         CaseName);

// Returns RandomValues, made once, since many tests need the same ones.
const std::vector<double>& Random(int64_t count, uint32_t seed, double mean) {
  static auto* const made =
      new std::map<std::pair<int64_t, uint32_t>, std::vector<double>>();
  std::vector<double>& values = (*made)[{count, seed}];
  if (values.empty()) values = RandomValues(count, seed, mean);
  return values;
}

// A layer's forward and backward pass, on tensors that are aligned only to
// their elements.
struct Step : LayerTensors {
  // fused: with ReLU and residual.
  Step(const ActivationShape& shape, DataType type, bool fused = true,
       const std::vector<double>& values = {}, bool affine = true)
      : LayerTensors(
            {.channels = shape.c, .affine = affine}, shape, type,
            {.x = values.empty() ? Random(shape.size(), 1, 0.25) : values,
             .residual = Random(shape.size(), 2, 0),
             .dy = Random(shape.size(), 3, 0),
             .weight = RandomValues(shape.c, 4, 1, 0.2),
             .bias = RandomValues(shape.c, 5)},
            /*offset=*/1, /*gradient_offset=*/1, /*channel_offset=*/1),
        call{.relu = fused, .residual = fused},
        sums(StatisticsTypeOf(type), 2 * shape.c, 1),
        record({UnwrittenRecord(shape.c)}, StatisticsTypeOf(type)) {}

  void Run(CpuBatchNormKernels& kernels) {
    EXPECT_THAT(kernels.ComputeMoments(shape, x.buffer(), record.data()),
                IsOk());
    EXPECT_THAT(kernels.Merge({record.layout(),
                               record.data(),
                               1,
                               {.epsilon = 1e-5},
                               {},
                               saved.data()}),
                IsOk());
    EXPECT_THAT(kernels.Normalize(ForwardBuffers(call)), IsOk());
    EXPECT_THAT(kernels.BackwardReduce(Backward()), IsOk());
    EXPECT_THAT(kernels.BackwardInput(Backward()), IsOk());
  }

  BatchNormKernels::BackwardCall Backward() const {
    BatchNormKernels::BackwardCall backward = {BackwardBuffers(call),
                                               sums.buffer()};
    backward.dresidual = dresidual.buffer();
    return backward;
  }

  // Returns the bytes of everything that is written.
  std::string Bytes() const {
    std::string bytes;
    for (const DeviceTensor* t : {&sums, &dy, &y, &dx, &dresidual, &dweight,
                                  &dbias, &mean, &variance}) {
      bytes += t->Bytes();
    }
    for (const DeviceRecords* r : {&record, &saved}) {
      bytes.append(reinterpret_cast<const char*>(r->data()),
                   static_cast<size_t>(r->layout().size_bytes()));
    }
    return bytes;
  }

  const LayerCall call;
  const DeviceTensor sums;
  const DeviceRecords record;
};

// Returns the units that this processor supports, the smallest first.
std::vector<VectorUnit> VectorUnits() {
  std::vector<VectorUnit> units;
  for (const VectorUnit unit :
       {VectorUnit::kBaseline, VectorUnit::kAvx2, VectorUnit::kAvx512}) {
    if (unit <= BestVectorUnit()) units.push_back(unit);
  }
  return units;
}

TEST(CpuBatchNormKernelsTest, BitsDoNotDependOnThreadsOrInstructions) {
  CpuBatchNormKernels kernels;
  CpuBatchNormKernels baseline(VectorUnit::kBaseline);
  for (const KernelsCase& c : CasesOf(&kKernels, kTypes)) {
    for (const ActivationShape& large : kKernels.large) {
      const ActivationShape shape = InLayout(large, c.layout);
      omp_set_num_threads(1);
      Step want(shape, c.type);
      want.Run(baseline);
      for (int threads : {2, 5}) {
        omp_set_num_threads(threads);
        Step step(shape, c.type);
        step.Run(kernels);
        EXPECT_TRUE(step.Bytes() == want.Bytes())
            << Describe(shape) << " on " << threads << " threads";
      }
    }
    omp_set_num_threads(1);
    for (const ActivationShape& small : kKernels.shapes) {
      const ActivationShape shape = InLayout(small, c.layout);
      for (const bool fused : {false, true}) {
        Step want(shape, c.type, fused);
        want.Run(baseline);
        for (const VectorUnit unit : VectorUnits()) {
          if (unit == VectorUnit::kBaseline) continue;
          CpuBatchNormKernels other(unit);
          Step step(shape, c.type, fused);
          step.Run(other);
          EXPECT_TRUE(step.Bytes() == want.Bytes())
              << Describe(shape) << " unit " << static_cast<int>(unit);
        }
      }
    }
  }
}

// How to run the passes of a single rank: by one call each, or by the
// operations in turn.
enum class LocalPass { kWhole, kByOperations };
// The gradient, if any, that backward writes over dy.
enum class OverGradient { kNothing, kDx, kDresidual };

void RunLocal(Step& step, CpuBatchNormKernels& kernels, LocalPass pass,
              bool training, OverGradient over) {
  const bool whole = pass == LocalPass::kWhole;
  BatchNorm::ForwardBuffers forward = step.ForwardBuffers(step.call);
  const MergeOptions options = MergeOptionsFor(step.options, forward.running);
  std::byte* const record = step.record.data();
  EXPECT_THAT(
      whole ? kernels.ForwardLocal(forward, options, record)
            : kernels.BatchNormKernels::ForwardLocal(forward, options, record),
      IsOk());
  if (!training) {
    EXPECT_THAT(kernels.UseRunning({step.record.layout(), forward.running,
                                    step.options.epsilon, step.saved.data()}),
                IsOk());
  }
  BatchNormKernels::BackwardCall backward = {step.BackwardBuffers(step.call),
                                             step.sums.buffer()};
  backward.training = training;
  if (over == OverGradient::kDx) backward.dx = step.dy.buffer();
  if (over == OverGradient::kDresidual) backward.dresidual = step.dy.buffer();
  int calls = 0;
  std::string ready;
  const auto note = [&] {
    ++calls;
    ready = step.dweight.Bytes() + step.dbias.Bytes();
  };
  EXPECT_THAT(whole ? kernels.BackwardLocal(backward, note)
                    : kernels.BatchNormKernels::BackwardLocal(backward, note),
              IsOk());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(ready, step.dweight.Bytes() + step.dbias.Bytes());
}

// With threads, a range has one block of channels for each thread. One shape
// has so many values that a block does not fit the cache, so the gradient is
// kept. One shape has tiles that are copied.
TEST(CpuBatchNormKernelsTest, LocalPassesHaveTheBitsOfTheirOperations) {
  CpuBatchNormKernels kernels;
  for (const auto& [n, hw] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 4}, {1, 2}, {5, 1}, {1, 49}, {40, 7}, {8, 784}}) {
    const ActivationShape shape = {n, 80, hw, Layout::kNchw16c};
    for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
      for (const int variant : {0, 1, 2, 3, 4}) {
        const bool fused = variant > 0;
        const bool affine = variant != 2;
        const bool training = variant != 3;
        const OverGradient over = variant == 1   ? OverGradient::kDx
                                  : variant == 4 ? OverGradient::kDresidual
                                                 : OverGradient::kNothing;
        omp_set_num_threads(1);
        Step want(shape, type, fused, {}, affine);
        RunLocal(want, kernels, LocalPass::kByOperations, training, over);
        for (const int threads : {1, 3}) {
          omp_set_num_threads(threads);
          Step step(shape, type, fused, {}, affine);
          RunLocal(step, kernels, LocalPass::kWhole, training, over);
          EXPECT_TRUE(step.Bytes() == want.Bytes())
              << Describe(shape) << " " << Name(type) << " variant " << variant
              << " on " << threads << " threads";
        }
      }
    }
  }
}

// The control: the test detects one value that differs in its last place.
TEST(CpuBatchNormKernelsTest, BitsDependOnTheValues) {
  CpuBatchNormKernels kernels;
  const ActivationShape shape = {.n = 2, .c = 3, .hw = 4};
  Step a(shape, DataType::kFloat64, /*fused=*/false);
  std::vector<double> values = a.x.values();
  values[7] *= 1 + 0x1p-52;
  Step b(shape, DataType::kFloat64, /*fused=*/false, values);
  a.Run(kernels);
  b.Run(kernels);
  EXPECT_NE(a.Bytes(), b.Bytes());
}

// Outputs of several MiB that are aligned to cache lines are written past the
// caches, unless channels are blocked. The outputs of Step are not, since they
// are not aligned.
TEST(CpuBatchNormKernelsTest, LargeAlignedOutputsHaveTheSameBits) {
  for (const VectorUnit unit : VectorUnits()) {
    CpuBatchNormKernels kernels(unit);
    for (const Layout layout : kAllLayouts) {
      // With channels last, the last run is short and not a multiple of a line.
      const ActivationShape shape = InLayout(
          {3, 65, layout == Layout::kNchw ? 80 * 80 : 79 * 81}, layout);
      ASSERT_GT(shape.size() * 4, 4 << 20);
      Step step(shape, DataType::kFloat32);
      step.Run(kernels);
      DeviceTensor y(DataType::kFloat32, shape.size());
      DeviceTensor dx(DataType::kFloat32, shape.size());
      DeviceTensor dresidual(DataType::kFloat32, shape.size());
      BatchNorm::ForwardBuffers forward = step.ForwardBuffers(step.call);
      forward.y = y.buffer();
      EXPECT_THAT(kernels.Normalize(forward), IsOk());
      BatchNormKernels::BackwardCall backward = step.Backward();
      backward.dx = dx.buffer();
      backward.dresidual = dresidual.buffer();
      EXPECT_THAT(kernels.BackwardInput(backward), IsOk());
      EXPECT_TRUE(y.Bytes() == step.y.Bytes()) << Name(layout);
      EXPECT_TRUE(dx.Bytes() == step.dx.Bytes()) << Name(layout);
      EXPECT_TRUE(dresidual.Bytes() == step.dresidual.Bytes()) << Name(layout);
      EXPECT_FALSE(dx.Bytes() == step.dresidual.Bytes()) << Name(layout);
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
