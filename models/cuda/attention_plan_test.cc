// Tests the choice between cuDNN's attention and products of matrices.
#include "models/cuda/attention_plan.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cuda/cudnn_plan.h"
#include "models/cuda/fused_attention.h"
#include "models/cuda/plan.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/program/operation_plan.h"
#include "syncbn/cuda/cudnn_status.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::StartsWith;

class AttentionPlanTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudnnCreate(&context_.cudnn), CUDNN_STATUS_SUCCESS);
    cudnn_.reset(context_.cudnn);
    ASSERT_EQ(cublasLtCreate(&context_.cublas), CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    if (context_.cublas != nullptr) cublasLtDestroy(context_.cublas);
  }

  // Returns the algorithm of a transformer's attention on a batch of 2.
  std::string AlgorithmOf(const std::string& options,
                          ConvolutionPrecision precision) {
    const absl::StatusOr<CudnnDevice> card =
        CudnnDevice::OfHandle(context_.cudnn);
    EXPECT_THAT(card, IsOk());
    context_.card = &*card;
    context_.precision = precision;
    const absl::StatusOr<Network> network =
        CreateNetwork("vit:patch=7,depth=1," + options);
    EXPECT_THAT(network, IsOk());
    const auto operation = std::ranges::find_if(
        network->operations(), [](const Network::Operation& each) {
          return std::holds_alternative<AttentionOp>(each.kind);
        });
    const PlanOr plan =
        PlanAttention(context_, RequestFor(*network, *operation, 2));
    EXPECT_THAT(plan, IsOk());
    // Products keep what they need; cuDNN's backward pass reads x and y.
    const bool is_fused = (*plan)->algorithm_name != "products";
    EXPECT_EQ((*plan)->backward_reads_x, is_fused);
    EXPECT_EQ((*plan)->backward_reads_y, is_fused);
    return (*plan)->algorithm_name;
  }

  FusedAttentionPlans plans_;
  CudaPlanContext context_ = {.attention_plans = &plans_};
  CudnnOwner<cudnnHandle_t> cudnn_;
};

TEST_F(AttentionPlanTest, IsFusedWhereCudnnSupportsIt) {
  constexpr auto kBFloat16 = ConvolutionPrecision::kBFloat16;
  EXPECT_THAT(AlgorithmOf("width=48,heads=3", kBFloat16), StartsWith("fused"));
  EXPECT_THAT(AlgorithmOf("width=48,heads=3,dropout=0.5",
                          ConvolutionPrecision::kFloat16),
              StartsWith("fused"));
  for (const auto precision :
       {ConvolutionPrecision::kFloat32, ConvolutionPrecision::kTf32}) {
    EXPECT_EQ(AlgorithmOf("width=48,heads=3", precision), "products");
  }
  // Heads of 12, and masks of attention.
  EXPECT_EQ(AlgorithmOf("width=36,heads=3", kBFloat16), "products");
  EXPECT_EQ(AlgorithmOf("width=48,heads=3,attention_dropout=0.5", kBFloat16),
            "products");
}

}  // namespace
}  // namespace lockstep
