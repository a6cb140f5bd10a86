// Compares cuDNN's batch norm with our kernels' batch norm of one rank, which
// other tests compare with a float64 reference. Linked with the stand-ins, the
// test needs no GPU; with CUDA and cuDNN it needs one.
#include "syncbn/cuda/cudnn_batch_norm.h"

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cuda_test_device.h"
#include "syncbn/sync_batch_norm.h"
#include "syncbn/testing/device_tensor.h"
#include "syncbn/testing/numbers.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

struct Case {
  ActivationShape shape;
  DataType type = DataType::kFloat32;
  BatchNormSemantics semantics = kTorchBatchNorm;
  bool affine = true;
  bool training = true;
  bool fused = false;  // ReLU and residual.
  double dy = 0;       // Added to it.
};

BatchNormOptions OptionsOf(const Case& c) {
  BatchNormOptions options;
  options.channels = c.shape.c;
  options.semantics = c.semantics;
  options.momentum = c.semantics.default_momentum;
  options.epsilon = 1e-3;
  options.affine = c.affine;
  return options;
}

// The outputs of a layer: y, dx and dresidual, then the gradients of the
// parameters and the running statistics, which are float32.
struct Outputs {
  std::vector<std::vector<double>> tensors;
  int64_t batches = 0;
};
constexpr const char* kNames[] = {"y",     "dx",   "dresidual", "dweight",
                                  "dbias", "mean", "variance"};

LayerTensors TensorsOf(const Case& c) {
  return LayerTensors(OptionsOf(c), c.shape, c.type,
                      {.x = RandomValues(c.shape.size(), 1, 0.5),
                       .residual = RandomValues(c.shape.size(), 2),
                       .dy = RandomValues(c.shape.size(), 3, c.dy),
                       .weight = RandomValues(c.shape.c, 4, 1, 0.2),
                       .bias = RandomValues(c.shape.c, 5),
                       .mean = 0.25,
                       .variance = 2});
}

class CudnnBatchNormTest : public GpuTest {
 protected:
  // Runs forward and then backward.
  static Outputs Run(const Case& c, BatchNorm& layer) {
    LayerTensors t = TensorsOf(c);
    EXPECT_THAT(t.Run(layer, {c.training, c.fused, c.fused}), IsOk());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    Outputs out = {.tensors = {}, .batches = t.batches};
    for (const DeviceTensor* tensor : {&t.y, &t.dx, &t.dresidual, &t.dweight,
                                       &t.dbias, &t.mean, &t.variance}) {
      out.tensors.push_back(tensor->Read());
    }
    return out;
  }

  // The error of a float32 sum of n numbers in any order is n round-offs of
  // their sizes. The error of a variance may be as many round-offs of the
  // largest square: 16 here, for values up to 4. Normalised values and
  // gradients are up to 4 too.
  static testing::AssertionResult Same(const Case& c, const Outputs& got,
                                       const Outputs& want) {
    const double n = static_cast<double>(c.shape.values_per_channel());
    const double error = 8 * n * 0x1p-24 * 16 * 16;
    if (got.batches != want.batches) {
      return testing::AssertionFailure() << "batches differ";
    }
    for (size_t k = 0; k < want.tensors.size(); ++k) {
      const DataType type = k < 3 ? c.type : DataType::kFloat32;
      testing::AssertionResult result =
          AllNear(got.tensors[k], want.tensors[k], [&](size_t i) {
            return error + 2 * RoundingError(type, want.tensors[k][i]);
          });
      if (!result) return result << " (" << kNames[k] << ")";
    }
    return testing::AssertionSuccess();
  }

  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto kernels = CudaBatchNormKernels::Create(nullptr);
    ASSERT_THAT(kernels, IsOk());
    kernels_ = *std::move(kernels);
  }

  Outputs Wanted(const Case& c) const {
    const auto layer = SyncBatchNorm::CreateLocal(OptionsOf(c), *kernels_);
    EXPECT_THAT(layer, IsOk());
    return Run(c, **layer);
  }

  Outputs Cudnns(const Case& c) const {
    const auto layer = CudnnBatchNorm::Create(OptionsOf(c), *kernels_);
    EXPECT_THAT(layer, IsOk());
    return Run(c, **layer);
  }

  std::unique_ptr<CudaBatchNormKernels> kernels_;
};

TEST_F(CudnnBatchNormTest, EqualsOurKernels) {
  for (const DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      for (const BatchNormSemantics& semantics : kAllBatchNormSemantics) {
        for (const int choice : {0, 1, 2, 3, 4, 5, 6, 7}) {
          for (const ActivationShape& shape :
               {ActivationShape{2, 8, 9, layout},
                ActivationShape{3, 5, 1, layout}}) {
            const Case c = {.shape = shape,
                            .type = type,
                            .semantics = semantics,
                            .affine = (choice & 1) != 0,
                            .training = (choice & 2) != 0,
                            .fused = (choice & 4) != 0};
            SCOPED_TRACE(absl::StrCat(Name(type), " ", Describe(shape), " ",
                                      choice, " ",
                                      std::string(semantics.name)));
            EXPECT_TRUE(Same(c, Cudnns(c), Wanted(c)));
          }
        }
      }
    }
  }
}

// The control: the comparison distinguishes training from evaluation, and the
// two variances from each other.
TEST_F(CudnnBatchNormTest, ComparisonRejectsWhatIsWrong) {
  const Case c = {.shape = {2, 8, 9, Layout::kNchw}};
  const Outputs right = Wanted(c);
  EXPECT_TRUE(Same(c, right, right));
  Case other = c;
  other.training = false;
  Outputs wrong = Wanted(other);
  wrong.batches = right.batches;
  EXPECT_FALSE(Same(c, wrong, right));
  other = c;
  other.semantics.unbiased_running_variance = false;
  EXPECT_FALSE(Same(c, Wanted(other), right));
}

TEST_F(CudnnBatchNormTest, TakesNoneAndRefusesOneValue) {
  const Case empty = {.shape = {0, 3, 4, Layout::kNchw}};
  const Outputs out = Cudnns(empty);
  EXPECT_EQ(out.batches, 0);
  EXPECT_EQ(out.tensors[5], std::vector<double>(3, 0.25));
  EXPECT_EQ(out.tensors[4], std::vector<double>(3, 0.0));

  const Case one = {.shape = {1, 3, 1, Layout::kNchw}};
  const auto layer = CudnnBatchNorm::Create(OptionsOf(one), *kernels_);
  ASSERT_THAT(layer, IsOk());
  LayerTensors t = TensorsOf(one);
  EXPECT_THAT(
      (*layer)->Forward(t.ForwardBuffers({})),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one value")));
  EXPECT_EQ(t.batches, 0);
}

TEST_F(CudnnBatchNormTest, RefusesBlockedChannels) {
  const Case c = {.shape = {2, 16, 9, Layout::kNchw16c}};
  const auto layer = CudnnBatchNorm::Create(OptionsOf(c), *kernels_);
  ASSERT_THAT(layer, IsOk());
  LayerTensors t = TensorsOf(c);
  for (const absl::Status& status :
       {(*layer)->Forward(t.ForwardBuffers({})),
        (*layer)->Backward(t.BackwardBuffers({}), [] {})}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented,
                                 HasSubstr("layout nchw16c")));
  }
}

// Each forward has its own reserve. If cuDNN does not support a backward, our
// kernels compute it from the `saved` of cuDNN's forward.
TEST_F(CudnnBatchNormTest, BackwardOfAnEarlierForwardIsRight) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    const Case c = {.shape = {2, 8, 9, layout}};
    const auto layer = CudnnBatchNorm::Create(OptionsOf(c), *kernels_);
    ASSERT_THAT(layer, IsOk());
    LayerTensors first = TensorsOf(c), second = TensorsOf(c);
    ASSERT_THAT((*layer)->Forward(first.ForwardBuffers({})), IsOk());
    ASSERT_THAT((*layer)->Forward(second.ForwardBuffers({})), IsOk());
    ASSERT_THAT((*layer)->Backward(first.BackwardBuffers({}), [] {}), IsOk());
    BatchNorm::BackwardBuffers in_place = second.BackwardBuffers({});
    in_place.dx = second.dy.buffer();
    ASSERT_THAT((*layer)->Backward(in_place, [] {}), IsOk());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<double> want = Wanted(c).tensors[1];
    for (const DeviceTensor* const dx : {&first.dx, &second.dy}) {
      EXPECT_TRUE(AllNear(dx->Read(), want,
                          [](size_t) { return 8 * 18 * 0x1p-24 * 16 * 16; }));
    }
  }
}

#ifdef LOCKSTEP_CUDA_STANDIN
TEST_F(CudnnBatchNormTest, BackwardByKernelsCanBeCaptured) {
  const auto stream = MakeStream();
  ASSERT_THAT(stream, IsOk());
  const auto kernels = CudaBatchNormKernels::Create(stream->get());
  ASSERT_THAT(kernels, IsOk());
  const Case c = {.shape = {2, 8, 9, Layout::kNchw}};
  const auto layer = CudnnBatchNorm::Create(OptionsOf(c), **kernels);
  ASSERT_THAT(layer, IsOk());
  LayerTensors t = TensorsOf(c);
  ASSERT_THAT((*layer)->Forward(t.ForwardBuffers({})), IsOk());
  BatchNorm::BackwardBuffers in_place = t.BackwardBuffers({});
  in_place.dx = t.dy.buffer();
  ASSERT_EQ(
      cudaStreamBeginCapture(stream->get(), cudaStreamCaptureModeThreadLocal),
      cudaSuccess);
  EXPECT_THAT((*layer)->Backward(in_place, [] {}), IsOk());
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream->get(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// PyTorch's calls use the persistent mode for channels last in training, the
// memory that cuDNN asks for, and backward in the mode of forward.
TEST_F(CudnnBatchNormTest, CallsCudnnAsPyTorchDoes) {
  for (const auto& [layout, mode] :
       {std::pair(Layout::kNchw, CUDNN_BATCHNORM_SPATIAL),
        std::pair(Layout::kNhwc, CUDNN_BATCHNORM_SPATIAL_PERSISTENT)}) {
    Case c = {.shape = {2, 8, 9, layout}, .type = DataType::kFloat16};
    const auto layer = CudnnBatchNorm::Create(OptionsOf(c), *kernels_);
    ASSERT_THAT(layer, IsOk());
    cudnnStandinCalls().clear();
    Run(c, **layer);
    c.training = false;
    Run(c, **layer);
    const std::vector<cudnnStandinCall>& calls = cudnnStandinCalls();
    ASSERT_EQ(calls.size(), 3u);
    EXPECT_STREQ(calls[0].name, "ForwardTrainingEx");
    EXPECT_STREQ(calls[1].name, "BackwardEx");
    EXPECT_STREQ(calls[2].name, "Inference");
    for (const int i : {0, 1}) {
      EXPECT_EQ(calls[i].mode, mode);
      EXPECT_EQ(calls[i].workspace, cudnnStandinSize(mode, 8, true));
      EXPECT_EQ(calls[i].reserve, sizeof(cudnnStandinReserve));
    }
    EXPECT_EQ(calls[2].mode, CUDNN_BATCHNORM_SPATIAL);
  }
}

// The control: cuDNN's stand-in rejects a reserve of another batch, and memory
// that is too small.
TEST_F(CudnnBatchNormTest, StandInRefusesAnotherBatchsReserve) {
  cudnnContext handle;
  cudnnTensorStruct t = {CUDNN_TENSOR_NHWC,      CUDNN_DATA_FLOAT, 2, 1, 1,
                         CUDNN_BATCHNORM_SPATIAL};
  cudnnTensorStruct channels = {
      CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 1, CUDNN_BATCHNORM_SPATIAL};
  const float x[] = {1, 2}, other[] = {1, 2}, one = 1, zero = 0;
  float out[2], mean, inverse, dscale, dbias;
  std::vector<char> workspace(1000);
  cudnnStandinReserve reserve;
  const auto forward = [&](size_t workspace_bytes) {
    return cudnnBatchNormalizationForwardTrainingEx(
        &handle, CUDNN_BATCHNORM_SPATIAL, CUDNN_BATCHNORM_OPS_BN, &one, &zero,
        &t, x, nullptr, nullptr, &t, out, &channels, &one, &zero, 1, nullptr,
        nullptr, 1e-5, &mean, &inverse, nullptr, workspace.data(),
        workspace_bytes, &reserve, sizeof(reserve));
  };
  const auto backward = [&](const float* of, cudnnBatchNormMode_t mode) {
    return cudnnBatchNormalizationBackwardEx(
        &handle, mode, CUDNN_BATCHNORM_OPS_BN, &one, &zero, &one, &zero, &t, of,
        nullptr, nullptr, &t, x, nullptr, nullptr, &t, out, &channels, &one,
        nullptr, &dscale, &dbias, 1e-5, &mean, &inverse, nullptr,
        workspace.data(), workspace.size(), &reserve, sizeof(reserve));
  };
  EXPECT_NE(forward(8), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(forward(workspace.size()), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(backward(x, CUDNN_BATCHNORM_SPATIAL), CUDNN_STATUS_SUCCESS);
  EXPECT_NE(backward(other, CUDNN_BATCHNORM_SPATIAL), CUDNN_STATUS_SUCCESS);
  EXPECT_NE(backward(x, CUDNN_BATCHNORM_SPATIAL_PERSISTENT),
            CUDNN_STATUS_SUCCESS);
}
#endif

// If the layer is not affine, its scratch memory gets gradients, here NaN. If
// the biased variance is tracked, cuDNN writes the batch's statistics to the
// same memory.
TEST_F(CudnnBatchNormTest, ForgetsWhatScratchMemoryHeld) {
  const Case c = {.shape = {2, 8, 9, Layout::kNchw},
                  .semantics = kPaddleBatchNorm,
                  .affine = false};
  const auto layer = CudnnBatchNorm::Create(OptionsOf(c), *kernels_);
  ASSERT_THAT(layer, IsOk());
  Case of_nan = c;
  of_nan.dy = std::nan("");
  const Outputs first = Run(of_nan, **layer);
  EXPECT_TRUE(std::isnan(first.tensors[1][0]));
  EXPECT_TRUE(Same(c, Run(c, **layer), Wanted(c)));
}

}  // namespace
}  // namespace lockstep
