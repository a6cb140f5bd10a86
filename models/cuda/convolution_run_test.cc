// Executes plans: on the stand-ins, which need no GPU, or with CUDA and cuDNN
// on a GPU. All values are small integers, so every precision represents the
// sums exactly. The results are therefore compared bit for bit with a loop on
// the host.
#include <cuda_runtime.h>
#include <cudnn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cuda/convolution.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_test_device.h"
#include "syncbn/cuda/cudnn_status.h"
#include "syncbn/testing/device_tensor.h"
#include "syncbn/testing/numbers.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

// A host tensor whose values are in the order [n, c, h, w].
struct Tensor {
  Tensor(int64_t n, int64_t c, int64_t h, int64_t w)
      : shape{n, c, h * w},
        h(h),
        w(w),
        values(static_cast<size_t>(n * c * h * w)) {}

  double& At(int64_t i, int64_t j, int64_t y, int64_t x) {
    return values[static_cast<size_t>(((i * shape.c + j) * h + y) * w + x)];
  }
  // Fills the tensor with integers in [-most, most].
  void Fill(uint32_t seed, int most) {
    for (double& value : values) {
      seed = seed * 1664525 + 1013904223;
      value = static_cast<int>((seed >> 16) % (2 * most + 1)) - most;
    }
  }
  // Returns the values in the order of `layout`, as the device stores them.
  std::vector<double> In(Layout layout) const {
    ActivationShape placed = shape;
    placed.layout = layout;
    return ToLayout(placed, values);
  }

  ActivationShape shape;
  int64_t h, w;
  std::vector<double> values;
};

// Calls visit(x, w, y) with the elements of each product.
template <typename Visit>
void ForEachProduct(const ConvolutionGraph& g, Tensor& x, Tensor& w, Tensor& y,
                    const Visit& visit) {
  for (int64_t i = 0; i < g.n; ++i) {
    for (int64_t k = 0; k < g.out_channels; ++k) {
      for (int64_t oy = 0; oy < g.out_h(); ++oy) {
        for (int64_t ox = 0; ox < g.out_w(); ++ox) {
          for (int64_t c = 0; c < g.c; ++c) {
            for (int64_t r = 0; r < g.kernel; ++r) {
              for (int64_t s = 0; s < g.kernel; ++s) {
                const int64_t iy = oy * g.stride - g.padding + r;
                const int64_t ix = ox * g.stride - g.padding + s;
                if (iy < 0 || iy >= g.h || ix < 0 || ix >= g.w) continue;
                visit(x.At(i, c, iy, ix), w.At(k, c, r, s), y.At(i, k, oy, ox));
              }
            }
          }
        }
      }
    }
  }
}

class ConvolutionRunTest : public GpuTest {};

TEST_F(ConvolutionRunTest, EveryPassIsExactOnSmallIntegers) {
  cudnnHandle_t handle = nullptr;
  ASSERT_EQ(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
  const CudnnOwner<cudnnHandle_t> owner(handle);
  const absl::StatusOr<CudnnDevice> card = CudnnDevice::OfHandle(handle);
  ASSERT_THAT(card, IsOk());
  // A sum has at most 8 * 9 products of at most 2 * 1, and a bias of 1.
  // bfloat16 represents all integers up to 256.
  ConvolutionGraph g = {.name = "exact", .n = 2, .c = 8, .h = 7, .w = 9};
  g.out_channels = 8;
  g.kernel = 3;
  g.stride = 2;
  g.padding = 1;
  Tensor x(g.n, g.c, g.h, g.w), w(g.out_channels, g.c, 3, 3);
  Tensor y(g.n, g.out_channels, g.out_h(), g.out_w());
  Tensor bias(1, g.out_channels, 1, 1);
  x.Fill(1, 2);
  w.Fill(2, 1);
  bias.Fill(3, 1);
  Tensor dx = x, dw = w, dy = y;
  dy.Fill(4, 1);
  for (Tensor* const sum : {&dx, &dw}) sum->Fill(0, 0);
  ForEachProduct(g, x, w, y,
                 [](double a, double b, double& sum) { sum += a * b; });
  for (int64_t i = 0; i < static_cast<int64_t>(y.values.size()); ++i) {
    const int64_t k = i / (g.out_h() * g.out_w()) % g.out_channels;
    double& value = y.values[static_cast<size_t>(i)];
    value = std::max(value + bias.At(0, k, 0, 0), 0.0);
  }
  ForEachProduct(g, dx, w, dy,
                 [](double& sum, double a, double b) { sum += a * b; });
  ForEachProduct(g, x, dw, dy,
                 [](double a, double& sum, double b) { sum += a * b; });
  for (const auto precision :
       {ConvolutionPrecision::kFloat32, ConvolutionPrecision::kTf32,
        ConvolutionPrecision::kFloat16, ConvolutionPrecision::kBFloat16}) {
    for (const Layout layout : {Layout::kNhwc, Layout::kNchw}) {
      for (const auto pass :
           {ConvolutionPass::kForward, ConvolutionPass::kInputGradient,
            ConvolutionPass::kWeightGradient}) {
        const bool forward = pass == ConvolutionPass::kForward;
        const bool input = pass == ConvolutionPass::kInputGradient;
        g.precision = precision;
        g.layout = layout;
        g.pass = pass;
        g.bias = g.relu = forward;
        SCOPED_TRACE(Describe(g));
        const auto plan = ConvolutionPlan::Create(*card, g);
        ASSERT_THAT(plan, IsOk());
        // The output operand holds NaN before the pass.
        struct Operand {
          Operand(Tensor& tensor, DataType type, Layout layout, bool written)
              : want(tensor.In(layout)),
                memory(type, written ? std::vector<double>(want.size(), NAN)
                                     : want) {}
          void* data() const { return memory.buffer().data; }
          std::vector<double> want;
          DeviceTensor memory;
        };
        const DataType type = TypeOf(precision);
        const Operand on_x(input ? dx : x, type, layout, input);
        const Operand on_w(forward || input ? w : dw, type, layout,
                           !forward && !input);
        const Operand on_y(forward ? y : dy, type, layout, forward);
        const Operand on_bias(bias, type, layout, false);
        auto workspace = AllocateDeviceMemory(plan->workspace_bytes() + 1);
        ASSERT_THAT(workspace, IsOk());
        EXPECT_THAT(plan->Execute(handle,
                                  {.x = on_x.data(),
                                   .w = on_w.data(),
                                   .y = on_y.data(),
                                   .bias = on_bias.data()},
                                  workspace->get()),
                    IsOk());
        for (const Operand* const operand : {&on_x, &on_w, &on_y}) {
          EXPECT_EQ(operand->memory.Read(), operand->want);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
