// Executes plans on a GPU. The numbers are small integers, whose sums every
// precision holds, so all is compared bit for bit with a loop on the host.
#include <cuda_runtime.h>
#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cuda/convolution.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cudnn_status.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

// [n, c, h, w] in any layout; element (n, c, h, w) is at At().
struct Tensor {
  Tensor(int64_t n, int64_t c, int64_t h, int64_t w)
      : n(n), c(c), h(h), w(w), values(static_cast<size_t>(n * c * h * w)) {}

  float& At(int64_t i, int64_t j, int64_t y, int64_t x) {
    return values[static_cast<size_t>(((i * c + j) * h + y) * w + x)];
  }
  // Integers of [-most, most].
  void Fill(uint32_t seed, int most) {
    for (float& value : values) {
      seed = seed * 1664525 + 1013904223;
      value = static_cast<float>(
          static_cast<int>((seed >> 16) % (2 * most + 1)) - most);
    }
  }

  int64_t n, c, h, w;
  std::vector<float> values;
};

// A tensor in device memory.
class OnDevice {
 public:
  OnDevice(const Tensor& tensor, DataType type, Layout layout)
      : host_(tensor), type_(type), layout_(layout) {
    auto memory = AllocateDeviceMemory(Bytes());
    EXPECT_THAT(memory, IsOk());
    memory_ = *std::move(memory);
    std::string bytes(static_cast<size_t>(Bytes()), '\0');
    ForEach([&](float& value, int64_t i) {
      if (type_ == DataType::kFloat16) {
        reinterpret_cast<Float16*>(bytes.data())[i] = ToFloat16(value);
      } else if (type_ == DataType::kBFloat16) {
        reinterpret_cast<BFloat16*>(bytes.data())[i] = ToBFloat16(value);
      } else {
        reinterpret_cast<float*>(bytes.data())[i] = value;
      }
    });
    EXPECT_EQ(cudaMemcpy(memory_.get(), bytes.data(), bytes.size(),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  void* data() const { return memory_.get(); }

  std::vector<float> Read() {
    std::string bytes(static_cast<size_t>(Bytes()), '\0');
    EXPECT_EQ(cudaMemcpy(bytes.data(), memory_.get(), bytes.size(),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    ForEach([&](float& value, int64_t i) {
      if (type_ == DataType::kFloat16) {
        value = ToFloat(reinterpret_cast<const Float16*>(bytes.data())[i]);
      } else if (type_ == DataType::kBFloat16) {
        value = ToFloat(reinterpret_cast<const BFloat16*>(bytes.data())[i]);
      } else {
        value = reinterpret_cast<const float*>(bytes.data())[i];
      }
    });
    return host_.values;
  }

 private:
  int64_t Bytes() const {
    return static_cast<int64_t>(host_.values.size()) * SizeOf(type_);
  }
  // Calls visit(element, where it lies).
  template <typename Visit>
  void ForEach(const Visit& visit) {
    Tensor& t = host_;
    int64_t nchw = 0;
    for (int64_t i = 0; i < t.n; ++i) {
      for (int64_t j = 0; j < t.c; ++j) {
        for (int64_t y = 0; y < t.h; ++y) {
          for (int64_t x = 0; x < t.w; ++x, ++nchw) {
            visit(t.At(i, j, y, x), layout_ == Layout::kNchw
                                        ? nchw
                                        : ((i * t.h + y) * t.w + x) * t.c + j);
          }
        }
      }
    }
  }

  Tensor host_;
  DataType type_;
  Layout layout_;
  DeviceMemory memory_;
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

class ConvolutionPlanGpuTest : public GpuTest {};

TEST_F(ConvolutionPlanGpuTest, EveryPassIsExactOnSmallIntegers) {
  cudnnHandle_t handle = nullptr;
  ASSERT_EQ(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
  const CudnnOwner<cudnnHandle_t> owner(handle);
  const absl::StatusOr<CudnnDevice> card = CudnnDevice::OfHandle(handle);
  ASSERT_THAT(card, IsOk());
  // At most 8 * 9 * 2 * 1 and 1 in a sum: bfloat16 has all integers to 256.
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
                 [](float a, float b, float& sum) { sum += a * b; });
  for (int64_t i = 0; i < static_cast<int64_t>(y.values.size()); ++i) {
    const int64_t k = i / (g.out_h() * g.out_w()) % g.out_channels;
    float& value = y.values[static_cast<size_t>(i)];
    value = std::max(value + bias.At(0, k, 0, 0), 0.0f);
  }
  ForEachProduct(g, dx, w, dy,
                 [](float& sum, float a, float b) { sum += a * b; });
  ForEachProduct(g, x, dw, dy,
                 [](float a, float& sum, float b) { sum += a * b; });
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
        // What the pass writes holds something else before.
        const auto on_device = [&](const Tensor& tensor, bool written) {
          Tensor spoilt = tensor;
          if (written) spoilt.Fill(5, 100);
          return OnDevice(spoilt, TypeOf(precision), layout);
        };
        OnDevice on_x = on_device(input ? dx : x, input);
        OnDevice on_w =
            on_device(forward || input ? w : dw, !forward && !input);
        OnDevice on_y = on_device(forward ? y : dy, forward);
        const OnDevice on_bias = on_device(bias, false);
        auto workspace = AllocateDeviceMemory(plan->workspace_bytes() + 1);
        ASSERT_THAT(workspace, IsOk());
        EXPECT_THAT(plan->Execute(handle,
                                  {.x = on_x.data(),
                                   .w = on_w.data(),
                                   .y = on_y.data(),
                                   .bias = on_bias.data()},
                                  workspace->get()),
                    IsOk());
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(on_x.Read(), (input ? dx : x).values);
        EXPECT_EQ(on_w.Read(), (forward || input ? w : dw).values);
        EXPECT_EQ(on_y.Read(), (forward ? y : dy).values);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
