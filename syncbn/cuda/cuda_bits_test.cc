// Tests that a layer's results keep their bits, whichever order a kernel's
// blocks run in and however its launches are cut, and that element-wise kernels
// walk from the end. Uses the stand-in, whose arithmetic has no fused
// operations on x86-64.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/fnv1a.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"
#include "standin/control.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cuda_test_device.h"
#include "syncbn/cuda/partition.h"
#include "syncbn/sync_batch_norm.h"
#include "syncbn/testing/device_tensor.h"

namespace lockstep {
namespace {

using standin::BlockOrder;

constexpr DataType kFloat32 = DataType::kFloat32;
constexpr DataType kFloat16 = DataType::kFloat16;
constexpr DataType kBFloat16 = DataType::kBFloat16;

// The hashes of a layer's results: of the numbers of channels, and of y and dx.
struct Digests {
  uint64_t channels = 0;
  uint64_t elements = 0;

  friend bool operator==(const Digests&, const Digests&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Digests& digests) {
    return out << absl::StrFormat("{0x%016x, 0x%016x}", digests.channels,
                                  digests.elements);
  }
};

// A training step and its results.
struct BitsCase {
  DataType type;
  ActivationShape shape;
  // The elements by which x and y, and by which the gradients, lie after a
  // boundary of vectors.
  int64_t offset;
  int64_t gradient_offset;
  Digests digests;

  friend std::ostream& operator<<(std::ostream& out, const BitsCase& bits) {
    return out << Name(bits.type) << " " << Describe(bits.shape) << " at "
               << bits.offset << " and " << bits.gradient_offset;
  }
};

// The digests were computed by kernels that merged all partial results in a
// launch of their own, one block for each channel. Those of planes that are not
// whole vectors are newer. Most shapes have so many partial results that they
// are merged in several steps.
const BitsCase kCases[] = {
    // Channels last, whole vectors of channels.
    {kFloat32,
     {256, 64, 40, Layout::kNhwc},
     0,
     0,
     {0xbd4075ded6b71da7, 0x34282c2c80604733}},
    {kBFloat16,
     {2, 256, 1152, Layout::kNhwc},
     0,
     0,
     {0x5754e00b921ba7f0, 0xd0ee4e0d3a68b3cb}},
    {kFloat16,
     {2, 1024, 130, Layout::kNhwc},
     0,
     0,
     {0x3cc6ecc68531d648, 0xc4962171537d2093}},
    {kBFloat16,
     {2, 512, 49, Layout::kNhwc},
     0,
     0,
     {0xd4b5b908ff6b7678, 0x9daa8d2f981ed2b7}},
    {kFloat32,
     {25, 8, 2048, Layout::kNhwc},
     0,
     0,
     {0x18e0ccae3c2636c2, 0xb98212e93cb5cbcd}},
    {kFloat16,
     {7, 64, 1000, Layout::kNhwc},
     1,
     1,
     {0xbb531b844ac358ff, 0x15f99360f74b665e}},
    {kFloat32,
     {300, 32, 64, Layout::kNhwc},
     1,
     0,
     {0xb63c97533684e874, 0x9de179645e73f99d}},
    {kBFloat16,
     {30, 40, 100, Layout::kNhwc},
     3,
     3,
     {0x392ae9c62f72a9cc, 0x7847378ab55f1800}},
    // Channels last, a vector has elements of two pixels.
    {kBFloat16,
     {2, 3, 10007, Layout::kNhwc},
     0,
     0,
     {0x38410e154270c53f, 0xf69c110533738724}},
    {kFloat32,
     {30, 65, 49, Layout::kNhwc},
     1,
     1,
     {0x8135ceaccb76c93e, 0x4caf9727314a479b}},
    {kFloat16,
     {90, 36, 49, Layout::kNhwc},
     0,
     0,
     {0xf21b316acc827b69, 0xb41718cdd2fd46dc}},
    {kFloat32,
     {2, 65, 1, Layout::kNhwc},
     0,
     0,
     {0x8fbf165f8f09fcd8, 0x5fc743882141542e}},
    // Channels first, planes of whole vectors.
    {kFloat32,
     {4, 4, 20000, Layout::kNchw},
     0,
     0,
     {0x5f6901628ec2f6d1, 0x75c574aac0f7ff88}},
    {kBFloat16,
     {20, 3, 12544, Layout::kNchw},
     0,
     0,
     {0x7cdb58a0868a3a52, 0xc45640b1dfa6bb7b}},
    {kFloat16,
     {1, 1, 1200000, Layout::kNchw},
     0,
     0,
     {0xdadf8c1ad48ff631, 0x18a607f98c627aab}},
    {kFloat32,
     {3, 70, 16, Layout::kNchw},
     0,
     0,
     {0x56b0e8e62f0bee4f, 0x5a8788fec337f09f}},
    // Channels first, other planes: inner vectors and single elements.
    {kFloat32,
     {16, 3, 2000, Layout::kNchw},
     1,
     0,
     {0x12a5ecc6403509ab, 0x5323fcac1cdfca87}},
    {kBFloat16,
     {32, 7, 2209, Layout::kNchw},
     0,
     0,
     {0x39aabe6914662b01, 0xb571238abf7f5582}},
    {kFloat32,
     {32, 20, 49, Layout::kNchw},
     1,
     1,
     {0x5b8586ab19713f67, 0x0329dcba48334acf}},
    {kFloat16,
     {9, 3, 3, Layout::kNchw},
     0,
     0,
     {0xd65e28d68f8d34e4, 0x554a5958ee52da86}},
};

// Returns numbers in [-2, 2), multiples of 1/1024 that look random.
std::vector<double> Numbers(int64_t count, uint64_t seed) {
  std::vector<double> numbers(static_cast<size_t>(count));
  uint64_t state = seed;
  for (double& number : numbers) {
    state = state * 6364136223846793005 + 1442695040888963407;
    number = static_cast<double>(state >> 52) / 1024 - 2;
  }
  return numbers;
}

BatchNormOptions OptionsOf(const BitsCase& bits) {
  BatchNormOptions options;
  options.channels = bits.shape.c;
  return options;
}

// A layer's memory before a step, in which the results are NaN.
LayerTensors TensorsOf(const BitsCase& bits, const BatchNormOptions& options) {
  return LayerTensors(options, bits.shape, bits.type,
                      {.x = Numbers(bits.shape.size(), 1),
                       .residual = {},
                       .dy = Numbers(bits.shape.size(), 2),
                       .weight = Numbers(bits.shape.c, 3),
                       .bias = Numbers(bits.shape.c, 4)},
                      bits.offset, bits.gradient_offset);
}

// Trains a step, with ReLU if the batch is even.
absl::Status Train(BatchNorm& layer, LayerTensors& tensors) {
  return tensors.Run(layer, {.relu = tensors.shape.n % 2 == 0});
}

Digests DigestsOf(const LayerTensors& tensors) {
  Digests digests;
  const RecordValues saved = tensors.saved.Read();
  EXPECT_EQ(saved.count, tensors.shape.values_per_channel());
  digests.channels = Fnv1a(std::as_bytes(std::span(saved.mean)));
  digests.channels =
      Fnv1a(std::as_bytes(std::span(saved.second)), digests.channels);
  for (const DeviceTensor* const tensor :
       {&tensors.mean, &tensors.variance, &tensors.dweight, &tensors.dbias}) {
    digests.channels = Fnv1a(tensor->Bytes(), digests.channels);
  }
  digests.elements = Fnv1a(tensors.dx.Bytes(), Fnv1a(tensors.y.Bytes()));
  return digests;
}

// Sets a step's results to NaN, and its running statistics to their initial
// values.
void ForgetResults(const LayerTensors& tensors) {
  for (const Buffer& result :
       {tensors.y.buffer(), tensors.dx.buffer(), tensors.dweight.buffer(),
        tensors.dbias.buffer(), tensors.saved.buffer()}) {
    ASSERT_EQ(
        cudaMemset(result.data, 0xff, static_cast<size_t>(result.size_bytes())),
        cudaSuccess);
  }
  for (const DeviceTensor* const running : {&tensors.mean, &tensors.variance}) {
    const std::vector<float> initial(running->values().begin(),
                                     running->values().end());
    ASSERT_EQ(
        cudaMemcpy(running->buffer().data, initial.data(),
                   initial.size() * sizeof(float), cudaMemcpyHostToDevice),
        cudaSuccess);
  }
}

// Captures a step into a graph. Returns null and fails the test on an error.
cudaGraphExec_t CaptureStep(BatchNorm& layer, LayerTensors& tensors,
                            cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            cudaSuccess);
  EXPECT_THAT(Train(layer, tensors), IsOk());
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return executable;
}

class CudaBitsTest : public testing::TestWithParam<BitsCase> {
 protected:
  void TearDown() override { standin::SetSchedule({}); }
};

// The first step is launched, and a graph replays it twice. All use the same
// kernels, so a step sees the memory and the tickets that the step before left.
TEST_P(CudaBitsTest, AreTheSameInEveryOrderOfBlocksAndInReplays) {
  const auto stream = MakeStream();
  ASSERT_THAT(stream, IsOk());
  const auto kernels = CudaBatchNormKernels::Create(stream->get());
  ASSERT_THAT(kernels, IsOk());
  const BatchNormOptions options = OptionsOf(GetParam());
  const auto layer = SyncBatchNorm::CreateLocal(options, **kernels);
  ASSERT_THAT(layer, IsOk());
  LayerTensors tensors = TensorsOf(GetParam(), options);
  ASSERT_THAT(Train(**layer, tensors), IsOk());
  EXPECT_EQ(DigestsOf(tensors), GetParam().digests);
  const cudaGraphExec_t graph = CaptureStep(**layer, tensors, stream->get());
  for (const BlockOrder order :
       {BlockOrder::kShuffled, BlockOrder::kAscending}) {
    standin::SetSchedule({.block_order = order});
    ForgetResults(tensors);
    ASSERT_EQ(cudaGraphLaunch(graph, stream->get()), cudaSuccess);
    EXPECT_EQ(DigestsOf(tensors), GetParam().digests);
  }
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Steps, CudaBitsTest, testing::ValuesIn(kCases),
                         [](const auto& info) {
                           return absl::StrFormat("Case%d", info.index);
                         });

// Element-wise kernels write a tensor that begins one step of a thread after
// the tensor that they read. Each output must be twice the original input. A
// thread that walked from the beginning would read what it has written.
class CudaWalkTest : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    auto kernels = CudaBatchNormKernels::Create(nullptr, /*max_blocks=*/1);
    ASSERT_THAT(kernels, IsOk());
    kernels_ = *std::move(kernels);
    distance_ = CutFlat(shape_, 0, 4, 1).step * 4;
    ASSERT_GT(shape_.size(), 4 * distance_);
    memory_.emplace(kFloat32, Numbers(shape_.size() + distance_, 1));
  }

  ConstBuffer input() const { return memory_->buffer().Part(0, shape_.size()); }
  Buffer output() const {
    return memory_->buffer().Part(distance_, shape_.size());
  }
  void ExpectTwice() const {
    std::vector<double> wanted = memory_->values();
    for (size_t i = static_cast<size_t>(distance_); i < wanted.size(); ++i) {
      wanted[i] = 2 * memory_->values()[i - static_cast<size_t>(distance_)];
    }
    EXPECT_EQ(memory_->Read(), wanted);
  }

  const ActivationShape shape_ = {9, 4, 260, GetParam()};
  const DeviceRecords saved_{{{0, {0, 0, 0, 0}, {2, 2, 2, 2}}}};
  std::unique_ptr<CudaBatchNormKernels> kernels_;
  int64_t distance_ = 0;
  std::optional<DeviceTensor> memory_;
};

TEST_P(CudaWalkTest, NormalizeBeginsAtTheEnd) {
  BatchNormKernels::NormalizeCall call;
  call.shape = shape_;
  call.x = input();
  call.y = output();
  call.saved = saved_.buffer();
  ASSERT_THAT(kernels_->Normalize(call), IsOk());
  ExpectTwice();
}

// The count of the record is 0, so the gradient is that of constants.
TEST_P(CudaWalkTest, BackwardInputBeginsAtTheEnd) {
  const DeviceTensor x(kFloat32, Numbers(shape_.size(), 2));
  const DeviceTensor sums(kFloat32, Numbers(2 * shape_.c, 3));
  BatchNormKernels::BackwardCall call;
  call.shape = shape_;
  call.x = x.buffer();
  call.dy = input();
  call.dx = output();
  call.saved = saved_.buffer();
  call.sums = sums.buffer();
  ASSERT_THAT(kernels_->BackwardInput(call), IsOk());
  ExpectTwice();
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaWalkTest,
                         testing::Values(Layout::kNchw, Layout::kNhwc),
                         [](const auto& info) {
                           return info.param == Layout::kNchw ? "ChannelsFirst"
                                                              : "ChannelsLast";
                         });

}  // namespace
}  // namespace lockstep
