// cuDNN's batch norm against our kernels' of one rank, which other tests
// compare with a float64 reference. Linked with the stand-ins it needs no GPU,
// with CUDA and cuDNN it needs one.
#include "syncbn/cuda/cudnn_batch_norm.h"

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/kernel_testing.h"
#include "syncbn/sync_batch_norm.h"
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

// What a layer writes.
struct Outputs {
  std::vector<double> y, dx, dresidual, dweight, dbias, mean, variance;
  int64_t batches = 0;
  int ready = 0;
};

struct Tensors {
  explicit Tensors(const Case& c)
      : x(c.type, RandomValues(c.shape.size(), 1, 0.5)),
        residual(c.type, RandomValues(c.shape.size(), 2)),
        dy(c.type, RandomValues(c.shape.size(), 3, c.dy)),
        y(c.type, c.shape.size()),
        dx(c.type, c.shape.size()),
        dresidual(c.type, c.shape.size()),
        weight(DataType::kFloat32, RandomValues(c.shape.c, 4, 1, 0.2)),
        bias(DataType::kFloat32, RandomValues(c.shape.c, 5)),
        dweight(DataType::kFloat32, c.shape.c),
        dbias(DataType::kFloat32, c.shape.c),
        mean(DataType::kFloat32,
             std::vector<double>(static_cast<size_t>(c.shape.c), 0.25)),
        variance(DataType::kFloat32,
                 std::vector<double>(static_cast<size_t>(c.shape.c), 2.0)) {}

  DeviceTensor x, residual, dy, y, dx, dresidual;
  DeviceTensor weight, bias, dweight, dbias, mean, variance;
};

class CudnnBatchNormTest : public GpuTest {
 protected:
  // Forward, and backward after it.
  static Outputs Run(const Case& c, BatchNorm& layer,
                     CudaBatchNormKernels& kernels) {
    Tensors t(c);
    Outputs out;
    const int64_t bytes = layer.SavedBytes(c.type);
    const auto memory = kernels.Allocate(bytes);
    EXPECT_THAT(memory, IsOk());
    const Buffer saved(memory->get(), bytes, DataType::kUInt8);
    const Buffer none;
    EXPECT_THAT(
        layer.Forward({c.shape,
                       c.training,
                       c.fused,
                       t.x.buffer(),
                       c.fused ? t.residual.buffer() : none,
                       c.affine ? t.weight.buffer() : none,
                       c.affine ? t.bias.buffer() : none,
                       {t.mean.buffer(), t.variance.buffer(), &out.batches},
                       t.y.buffer(),
                       saved}),
        IsOk());
    EXPECT_THAT(layer.Backward(
                    {c.shape, c.training, c.fused, t.x.buffer(), t.y.buffer(),
                     t.dy.buffer(), c.affine ? t.weight.buffer() : none, saved,
                     c.affine ? t.dweight.buffer() : none,
                     c.affine ? t.dbias.buffer() : none, t.dx.buffer(),
                     c.fused ? t.dresidual.buffer() : none},
                    [&out] { ++out.ready; }),
                IsOk());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    out.y = t.y.Read();
    out.dx = t.dx.Read();
    out.dresidual = t.dresidual.Read();
    out.dweight = t.dweight.Read();
    out.dbias = t.dbias.Read();
    out.mean = t.mean.Read();
    out.variance = t.variance.Read();
    return out;
  }

  // Float32 sums of n numbers in any order err by n round-offs of their sizes,
  // a variance perhaps by as many of the largest square: 16 here, of values up
  // to 4. Normalised values and gradients are up to 4 too.
  static testing::AssertionResult Same(const Case& c, const Outputs& got,
                                       const Outputs& want) {
    const double n = static_cast<double>(c.shape.values_per_channel());
    const double error = 8 * n * kRoundOff * 16 * 16;
    if (got.batches != want.batches || got.ready != want.ready) {
      return testing::AssertionFailure() << "batches or readiness differ";
    }
    const std::tuple<const char*, const std::vector<double>*,
                     const std::vector<double>*, DataType>
        pairs[] = {{"y", &got.y, &want.y, c.type},
                   {"dx", &got.dx, &want.dx, c.type},
                   {"dresidual", &got.dresidual, &want.dresidual, c.type},
                   {"dweight", &got.dweight, &want.dweight, {}},
                   {"dbias", &got.dbias, &want.dbias, {}},
                   {"mean", &got.mean, &want.mean, {}},
                   {"variance", &got.variance, &want.variance, {}}};
    for (const auto& [name, a, b, type] : pairs) {
      testing::AssertionResult result =
          AllNear(*a, *b, [&, other = b, element = type](size_t i) {
            return error + 2 * RoundingError(element, (*other)[i]);
          });
      if (!result) return result << " (" << name << ")";
    }
    return testing::AssertionSuccess();
  }

  static Outputs Wanted(const Case& c, CudaBatchNormKernels& kernels) {
    const auto layer = SyncBatchNorm::CreateLocal(OptionsOf(c), kernels);
    EXPECT_THAT(layer, IsOk());
    return Run(c, **layer, kernels);
  }

  static Outputs Cudnns(const Case& c, CudaBatchNormKernels& kernels) {
    const auto layer = CudnnBatchNorm::Create(OptionsOf(c), kernels);
    EXPECT_THAT(layer, IsOk());
    return Run(c, **layer, kernels);
  }
};

TEST_F(CudnnBatchNormTest, EqualsOurKernels) {
  const auto kernels = CudaBatchNormKernels::Create(nullptr);
  ASSERT_THAT(kernels, IsOk());
  for (const DataType type : kGpuTypes) {
    for (const Layout layout : kLayouts) {
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
            EXPECT_TRUE(Same(c, Cudnns(c, **kernels), Wanted(c, **kernels)));
          }
        }
      }
    }
  }
}

// The control: the comparison tells training from evaluation, and the two
// variances apart.
TEST_F(CudnnBatchNormTest, ComparisonRejectsWhatIsWrong) {
  const auto kernels = CudaBatchNormKernels::Create(nullptr);
  ASSERT_THAT(kernels, IsOk());
  const Case c = {.shape = {2, 8, 9, Layout::kNchw}};
  const Outputs right = Wanted(c, **kernels);
  EXPECT_TRUE(Same(c, right, right));
  Case other = c;
  other.training = false;
  Outputs wrong = Wanted(other, **kernels);
  wrong.batches = right.batches;
  EXPECT_FALSE(Same(c, wrong, right));
  other = c;
  other.semantics.unbiased_running_variance = false;
  EXPECT_FALSE(Same(c, Wanted(other, **kernels), right));
}

TEST_F(CudnnBatchNormTest, TakesNoneAndRefusesOneValue) {
  const auto kernels = CudaBatchNormKernels::Create(nullptr);
  ASSERT_THAT(kernels, IsOk());
  const Case empty = {.shape = {0, 3, 4, Layout::kNchw}};
  const Outputs out = Cudnns(empty, **kernels);
  EXPECT_EQ(out.batches, 0);
  EXPECT_EQ(out.mean, std::vector<double>(3, 0.25));
  EXPECT_EQ(out.dbias, std::vector<double>(3, 0.0));

  const Case one = {.shape = {1, 3, 1, Layout::kNchw}};
  const auto layer = CudnnBatchNorm::Create(OptionsOf(one), **kernels);
  ASSERT_THAT(layer, IsOk());
  Tensors t(one);
  const int64_t bytes = (*layer)->SavedBytes(one.type);
  const auto memory = (*kernels)->Allocate(bytes);
  ASSERT_THAT(memory, IsOk());
  int64_t batches = 0;
  EXPECT_THAT(
      (*layer)->Forward({one.shape,
                         true,
                         false,
                         t.x.buffer(),
                         {},
                         t.weight.buffer(),
                         t.bias.buffer(),
                         {t.mean.buffer(), t.variance.buffer(), &batches},
                         t.y.buffer(),
                         {memory->get(), bytes, DataType::kUInt8}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one value")));
  EXPECT_EQ(batches, 0);
}

// Gradients of NaN go to the layer's scratch memory where it is not affine;
// cuDNN writes the batch's statistics there where the biased variance is
// tracked.
TEST_F(CudnnBatchNormTest, ForgetsWhatScratchMemoryHeld) {
  const auto kernels = CudaBatchNormKernels::Create(nullptr);
  ASSERT_THAT(kernels, IsOk());
  const Case c = {.shape = {2, 8, 9, Layout::kNchw},
                  .semantics = kPaddleBatchNorm,
                  .affine = false};
  const auto layer = CudnnBatchNorm::Create(OptionsOf(c), **kernels);
  ASSERT_THAT(layer, IsOk());
  Case of_nan = c;
  of_nan.dy = std::nan("");
  const Outputs first = Run(of_nan, **layer, **kernels);
  EXPECT_TRUE(std::isnan(first.dx[0]));
  EXPECT_TRUE(Same(c, Run(c, **layer, **kernels), Wanted(c, **kernels)));
}

}  // namespace
}  // namespace lockstep
