// Runs the suite of all kernels on a GPU, or on the stand-in runtime, which
// needs none. Also tests the features that only a GPU's kernels have.
#include "syncbn/cuda/cuda_batch_norm_kernels.h"

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/cuda_graph.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_test_device.h"
#include "syncbn/cuda/reductions.h"
#include "syncbn/testing/device_tensor.h"
#include "syncbn/testing/kernel_suite.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// There are so few blocks that threads take several vectors of the largest
// shapes. The number of threads is not a multiple of three channels.
constexpr int64_t kMaxBlocks = 5;

class CudaBatchNormKernelsTest : public GpuTest {
 public:
  using GpuTest::SetUp;

 private:
  void TestBody() override {}
};

std::unique_ptr<BatchNormKernels> MakeKernels() {
  CudaBatchNormKernelsTest().SetUp();
  if (testing::Test::IsSkipped() || testing::Test::HasFatalFailure()) {
    return nullptr;
  }
  auto kernels = CudaBatchNormKernels::Create(nullptr, kMaxBlocks);
  EXPECT_THAT(kernels, IsOk());
  return kernels.ok() ? *std::move(kernels) : nullptr;
}

// Returns the error bounds. Let A be the largest |x|.
//
// Means: the first values of a thread are averaged, with at most 8 additions. A
// tile of n values adds sum (x - K) / (n0 + n) to the mean K of n0 values: 14
// roundings of at most 2 A, which is 28 u A in the part n / (n0 + n). An error
// of K stays in the part n0 / (n0 + n), so these errors average. One rounding
// of the new mean adds u A. A thread has at most 16 tiles here: 8 + 6 + 28 +
// 16. At most 24 merges follow (the first values, a tree of threads, partial
// results, a tree of them). Each adds 6 u A and averages the errors before it:
// together less than 224 u A.
//
// M2: an error e of means changes M2 as it changes sum (x - mean)^2: by n e^2
// and, by Cauchy and Schwarz, by 2 e sqrt(n M2). A tile adds S2 - S1^2 / (n0 +
// n); S2 is rounded 14 times and the other term 28 times. The difference is at
// least a fifth of S2 (reductions.cu) and at least a quarter of the other term,
// so the error is at most 14 * 5 + 28 * 4 = 182 roundings of it. All other
// steps make 4 roundings each.
MomentErrors ErrorsOfMoments(const Moments<double>& exact, double largest,
                             double u) {
  const double n = static_cast<double>(exact.count);
  const double e = (32 + 32 * 6) * u * largest;
  return {e, (182 + 64 * 4) * u * exact.m2 + 2 * e * std::sqrt(n * exact.m2) +
                 n * e * e};
}

// Returns the error bound of a sum. A term is rounded four times, and passes
// through at most this many additions: of a thread (at most 96 for the largest
// shape here), of a tree, of partial results, and of a tree.
double ErrorsOfSums(int64_t, double u) { return (4 + 96 + 8 + 8 + 8) * u; }

// The shapes have every kind of size: one, primes, 63 to 65, planes with and
// without whole vectors, several blocks for a channel. The longest product of
// dx is a difference, a reciprocal and three factors. Two differences and the
// scale, itself a product, follow: nine roundings. One more rounding covers the
// products of these errors.
const KernelsUnderTest kKernels = {.make = MakeKernels,
                                   .layouts = {Layout::kNchw, Layout::kNhwc},
                                   .shapes = {{1, 1, 1},
                                              {2, 1, 1},
                                              {1, 2, 1},
                                              {5, 3, 1},
                                              {1, 1, 7},
                                              {3, 2, 4},
                                              {2, 3, 49},
                                              {1, 5, 63},
                                              {2, 7, 64},
                                              {1, 2, 65},
                                              {67, 8, 1},
                                              {3, 63, 5},
                                              {2, 64, 9},
                                              {1, 65, 17},
                                              {4, 4, 16},
                                              {40, 3, 13},
                                              {1, 1, 9001},
                                              {2, 2, 17001},
                                              {1, 3, 22003}},
                                   .large = {},
                                   .moment_errors = ErrorsOfMoments,
                                   .sum_errors = ErrorsOfSums,
                                   .input_gradient_roundings = 10,
                                   .exact_of_equal_values = false};

INSTANTIATE_TEST_SUITE_P(Cuda, KernelsTest,
                         testing::ValuesIn(CasesOf(
                             &kKernels, {DataType::kFloat32, DataType::kFloat16,
                                         DataType::kBFloat16})),
                         CaseName);

// Runs a local layer's forward pass: by one call, or by its operations in turn,
// which store the moments in a record. Returns the bytes of all results.
std::string BytesOfLocalForward(BatchNormKernels& kernels, LayerTensors& layer,
                                bool by_operations) {
  const BatchNorm::ForwardBuffers buffers = layer.ForwardBuffers({});
  const MergeOptions options = MergeOptionsFor(layer.options, buffers.running);
  const DeviceRecords record({UnwrittenRecord(layer.shape.c)});
  EXPECT_THAT(by_operations
                  ? kernels.BatchNormKernels::ForwardLocal(buffers, options,
                                                           record.data())
                  : kernels.ForwardLocal(buffers, options, record.data()),
              IsOk());
  const RecordValues saved = layer.saved.Read();
  std::string bytes = absl::StrCat(saved.count);
  for (size_t c = 0; c < saved.mean.size(); ++c) {
    absl::StrAppendFormat(&bytes, " %a %a", saved.mean[c], saved.second[c]);
  }
  return bytes + layer.mean.Bytes() + layer.variance.Bytes() + layer.y.Bytes();
}

TEST(CudaKernelsTest, LocalForwardHasTheBitsOfItsOperations) {
  const auto kernels = MakeKernels();
  if (kernels == nullptr) return;
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    for (const ActivationShape& of :
         {ActivationShape{0, 3, 5}, {1, 4, 1}, {3, 5, 67}, {9, 64, 700}}) {
      const ActivationShape shape = InLayout(of, layout);
      for (const BatchNormSemantics& semantics : kAllBatchNormSemantics) {
        BatchNormOptions options;
        options.channels = shape.c;
        options.semantics = semantics;
        std::string bytes[2];
        for (const bool by_operations : {false, true}) {
          LayerTensors layer(options, shape, DataType::kFloat32,
                             {.x = RandomValues(shape.size(), 1, 0.5),
                              .residual = {},
                              .dy = {},
                              .weight = RandomValues(shape.c, 2),
                              .bias = RandomValues(shape.c, 3)});
          bytes[by_operations] =
              BytesOfLocalForward(*kernels, layer, by_operations);
        }
        EXPECT_TRUE(bytes[0] == bytes[1]) << Describe(shape);
      }
    }
  }
}

// Computes the moments of channels by reductions that merge the partial results
// of many blocks.
class MomentsOf {
 public:
  explicit MomentsOf(int64_t samples)
      : shape_{samples, 64, 50, Layout::kNhwc},
        x_(DataType::kFloat32, RandomValues(shape_.size(), 1)),
        record_({UnwrittenRecord(shape_.c)}) {}

  absl::Status Enqueue(ReductionMemory& memory, cudaStream_t stream) {
    return ReduceMomentsOnGpu(shape_, x_.buffer(), record_.data(),
                              /*merge=*/nullptr, memory, stream);
  }
  std::vector<double> Read() const {
    const RecordValues record = record_.Read();
    std::vector<double> values = record.mean;
    values.insert(values.end(), record.second.begin(), record.second.end());
    return values;
  }

 private:
  const ActivationShape shape_;
  const DeviceTensor x_;
  const DeviceRecords record_;
};

// Address sanitizers see whether a replay uses memory that was freed.
TEST(CudaKernelsTest, AGraphIsValidAfterTheScratchMemoryHasGrown) {
  if (MakeKernels() == nullptr) return;
  const absl::StatusOr<Stream> stream = MakeStream();
  ASSERT_THAT(stream, IsOk());
  absl::StatusOr<ReductionMemory> memory =
      ReductionMemory::Create(/*bytes=*/16, stream->get());
  ASSERT_THAT(memory, IsOk());
  MomentsOf small(20);
  MomentsOf large(200);
  ASSERT_THAT(small.Enqueue(*memory, stream->get()), IsOk());
  const std::vector<double> before = small.Read();
  const std::byte* const scratch = memory->scratch();
  MomentsOf captured(20);
  const absl::StatusOr<Graph> graph = CaptureGraph(
      stream->get(), [&] { return captured.Enqueue(*memory, stream->get()); });
  ASSERT_THAT(graph, IsOk());
  EXPECT_EQ(memory->scratch(), scratch);
  ASSERT_THAT(large.Enqueue(*memory, stream->get()), IsOk());
  EXPECT_NE(memory->scratch(), scratch);
  ASSERT_EQ(cudaGraphLaunch(graph->get(), stream->get()), cudaSuccess);
  EXPECT_EQ(captured.Read(), before);
}

TEST(CudaKernelsTest, TrackBiasedVariance) {
  const auto kernels = MakeKernels();
  if (kernels == nullptr) return;
  const DeviceTensor mean(DataType::kFloat32, {4.0, 8.0});
  const DeviceTensor unbiased(DataType::kFloat32, {3.0, 6.0});
  const DeviceTensor running_mean(DataType::kFloat32, {0.0, 0.0});
  const DeviceTensor running_variance(DataType::kFloat32, {1.0, 1.0});
  const auto data = [](const DeviceTensor& tensor) {
    return static_cast<const float*>(tensor.buffer().data);
  };
  ASSERT_THAT(static_cast<CudaBatchNormKernels&>(*kernels).TrackBiased(
                  {.channels = 2}, data(mean), data(unbiased), 3, 0.25,
                  {running_mean.buffer(), running_variance.buffer(), nullptr}),
              IsOk());
  EXPECT_EQ(running_mean.Read(), (std::vector<double>{1, 2}));
  EXPECT_TRUE(AllNear(running_variance.Read(), {1.25, 1.75},
                      [](size_t) { return 0x1p-23; }));
}

TEST(CudaKernelsTest, RefuseBlockedChannels) {
  const auto kernels = MakeKernels();
  if (kernels == nullptr) return;
  BatchNormKernels::NormalizeCall forward;
  forward.shape = {0, 16, 1, Layout::kNchw16c};
  BatchNormKernels::BackwardCall backward;
  backward.shape = forward.shape;
  for (const absl::Status& status :
       {kernels->ComputeMoments(forward.shape, forward.x, nullptr),
        kernels->Normalize(forward), kernels->BackwardReduce(backward),
        kernels->BackwardInput(backward)}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented,
                                 HasSubstr("layout nchw16c")));
  }
}

TEST(CudaKernelsTest, RefuseFloat64) {
  const auto kernels = MakeKernels();
  if (kernels == nullptr) return;
  BatchNormKernels::NormalizeCall forward;
  forward.x.type = DataType::kFloat64;
  BatchNormKernels::BackwardCall backward;
  backward.x.type = DataType::kFloat64;
  const StatisticsRecord record = {.type = DataType::kFloat64};
  for (const absl::Status& status :
       {kernels->ComputeMoments({0, 1, 1}, forward.x, nullptr),
        kernels->Merge({.record = record}),
        kernels->UseRunning({.record = record}), kernels->Normalize(forward),
        kernels->BackwardReduce(backward), kernels->BackwardInput(backward)}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented,
                                 HasSubstr("float64")));
  }
}

}  // namespace
}  // namespace lockstep
