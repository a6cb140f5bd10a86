// The kernels of a step in 16 bits. Each computes the float32 kernel's result
// from the same 16-bit inputs, and rounds it once: the bits are compared. The
// other tests hold the float32 kernels to float64 or to exact numbers, so a
// result in 16 bits is wrong by half a unit in its last place, beside float32's
// own error. What is float32 in every type, such as the gradients of
// parameters, has float32's bits.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cuda/dropout.h"
#include "models/cuda/layer_norm.h"
#include "models/cuda/loss.h"
#include "models/cuda/pointwise.h"
#include "models/cuda/pool.h"
#include "models/cuda/sequence.h"
#include "models/cuda/softmax.h"
#include "models/cuda/test_vector.h"
#include "models/model.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

std::vector<float> Normal(int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.25f, 1);
  std::vector<float> values(static_cast<size_t>(size));
  for (float& x : values) x = normal(random);
  return values;
}

// The results of a kernel: activations of its type, widened, and numbers that
// are float32 in every type.
struct Results {
  std::vector<std::vector<float>> activations;
  std::vector<std::vector<float>> wide;
};
using Kernel = std::function<Results(DataType type)>;

class StepTypesTest : public GpuTest {
 protected:
  // inputs(type) gives numbers that `type` holds exactly to the kernel in any
  // type, so that both kernels have the same inputs.
  void ExpectOneRounding(const std::function<Kernel(DataType type)>& inputs) {
    for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
      SCOPED_TRACE(Name(type));
      const Kernel kernel = inputs(type);
      const Results want = kernel(DataType::kFloat32);
      const Results got = kernel(type);
      ASSERT_EQ(got.activations.size(), want.activations.size());
      int64_t inexact = 0;
      for (size_t i = 0; i < want.activations.size(); ++i) {
        const std::vector<float>& exact = want.activations[i];
        EXPECT_EQ(got.activations[i], Rounded(type, exact)) << "result " << i;
        for (const float x : exact) inexact += Rounded(type, x) != x ? 1 : 0;
      }
      EXPECT_EQ(got.wide, want.wide);
      inexact_ = inexact;
    }
  }

  int64_t inexact_ = 0;  // The results of the last type that were rounded.
};

TEST_F(StepTypesTest, ConversionsRoundToNearestAndAreExactBack) {
  std::vector<float> wide = Normal(5000, 1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Ties, subnormal numbers of float16, its largest number, and above.
  for (const float x :
       {1.00390625f, 1.01171875f, 1.00048828125f, 1.00146484375f, 3e-8f, 2e-7f,
        -6e-5f, 65504.0f, 65520.0f, -1e30f, kInfinity, 0.0f, -0.0f}) {
    wide.push_back(x);
  }
  const auto count = static_cast<int64_t>(wide.size());
  TestVector<float> from(wide), back(wide);
  for (const DataType type :
       {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    TestActivations to(type, std::vector<float>(wide.size(), 99));
    ASSERT_THAT(RoundOnGpu(type, count, from.data(), to.data(), nullptr),
                IsOk());
    EXPECT_EQ(to.Read(), Rounded(type, wide)) << Name(type);
    ASSERT_THAT(WidenOnGpu(type, count, to.data(), back.data(), nullptr),
                IsOk());
    EXPECT_EQ(back.Read(), Rounded(type, wide)) << Name(type);
  }
  EXPECT_THAT(
      RoundOnGpu(DataType::kInt32, 1, from.data(), back.data(), nullptr),
      StatusIs(absl::StatusCode::kUnimplemented,
               testing::HasSubstr("for activations of int32")));
}

TEST_F(StepTypesTest, Pointwise) {
  constexpr int64_t kRows = 700, kChannels = 33, kCount = kRows * kChannels;
  ExpectOneRounding([&](DataType inputs) -> Kernel {
    const std::vector<float> a = Rounded(inputs, Normal(kCount, 1));
    const std::vector<float> b = Rounded(inputs, Normal(kCount, 2));
    return [=](DataType type) {
      TestActivations x(type, a), y(type, a), dy(type, b), dx(type, a);
      TestActivations sum(type, a);
      TestVector<float> dbias{std::vector<float>(kChannels)};
      TestVector<float> scratch{std::vector<float>(
          static_cast<size_t>(BiasReluScratchBytes(kRows, kChannels)) / 4)};
      EXPECT_THAT(GeluForward(type, kCount, x.data(), y.data(), nullptr),
                  IsOk());
      EXPECT_THAT(
          GeluBackward(type, kCount, x.data(), dy.data(), dx.data(), nullptr),
          IsOk());
      EXPECT_THAT(AddInto(type, kCount, dy.data(), sum.data(), nullptr),
                  IsOk());
      EXPECT_THAT(BiasReluBackward(type, kRows, kChannels, x.data(), dy.data(),
                                   dbias.data(), scratch.data(), nullptr),
                  IsOk());
      return Results{{y.Read(), dx.Read(), sum.Read(), dy.Read()},
                     {dbias.Read()}};
    };
  });
  EXPECT_GT(inexact_, kCount);
}

TEST_F(StepTypesTest, Pools) {
  const Shape x = {.n = 2, .c = 5, .h = 9, .w = 8};
  Shape y = x;
  y.h = 4;
  y.w = 3;
  for (const bool maximum : {true, false}) {
    ExpectOneRounding([&](DataType inputs) -> Kernel {
      const std::vector<float> values = Rounded(inputs, Normal(x.size(), 1));
      const std::vector<float> slopes = Rounded(inputs, Normal(y.size(), 2));
      return [=](DataType type) {
        const PoolShape shape = {.x = x,
                                 .y = y,
                                 .maximum = maximum,
                                 .kernel_h = 3,
                                 .kernel_w = 3,
                                 .stride_h = 2,
                                 .stride_w = 2,
                                 .type = type};
        TestActivations in(type, values), out(type, slopes), dy(type, slopes);
        TestActivations dx(type, values);
        TestVector<uint8_t> winners{std::vector<uint8_t>(slopes.size())};
        EXPECT_THAT(
            PoolForward(shape, in.data(), out.data(), winners.data(), nullptr),
            IsOk());
        EXPECT_THAT(
            PoolBackward(shape, dy.data(), winners.data(), dx.data(), nullptr),
            IsOk());
        return Results{{out.Read(), dx.Read()}, {}};
      };
    });
    EXPECT_GT(inexact_, 0);
  }
}

TEST_F(StepTypesTest, Loss) {
  constexpr int64_t kSamples = 40, kClasses = 11;
  ExpectOneRounding([&](DataType inputs) -> Kernel {
    const std::vector<float> values =
        Rounded(inputs, Normal(kSamples * kClasses, 1));
    std::vector<int32_t> of_samples;
    for (int32_t i = 0; i < kSamples; ++i) of_samples.push_back(i % kClasses);
    return [=](DataType type) {
      TestActivations logits(type, values), gradient(type, values);
      TestVector<int32_t> labels(of_samples);
      TestVector<double> losses{std::vector<double>(2 * kSamples)};
      TestVector<DeviceMetrics> metrics({DeviceMetrics{}});
      EXPECT_THAT(SoftmaxCrossEntropyOnGpu({.n = kSamples,
                                            .classes = kClasses,
                                            .type = type,
                                            .logits = logits.data(),
                                            .labels = labels.data(),
                                            .gradient_scale = 0.125f,
                                            .gradient = gradient.data(),
                                            .sample_losses = losses.data()},
                                           metrics.data(), nullptr),
                  IsOk());
      const DeviceMetrics sums = metrics.Read()[0];
      return Results{{gradient.Read()},
                     {{static_cast<float>(sums.loss_sum),
                       static_cast<float>(sums.correct)}}};
    };
  });
  EXPECT_GT(inexact_, kSamples);
}

TEST_F(StepTypesTest, LayerNorm) {
  constexpr int64_t kRows = 515, kChannels = 34, kCount = kRows * kChannels;
  ExpectOneRounding([&](DataType inputs) -> Kernel {
    const std::vector<float> a = Rounded(inputs, Normal(kCount, 1));
    const std::vector<float> b = Rounded(inputs, Normal(kCount, 2));
    return [=](DataType type) {
      const LayerNormShape shape = {
          .rows = kRows, .channels = kChannels, .epsilon = 1e-5f, .type = type};
      TestActivations x(type, a), y(type, a), dy(type, b);
      // Parameters that no 16-bit type holds.
      TestVector<float> weight(Normal(kChannels, 3)),
          bias(Normal(kChannels, 4));
      TestVector<float> dweight(Normal(kChannels, 5)),
          dbias(Normal(kChannels, 5));
      TestVector<RowStatistics> rows{std::vector<RowStatistics>(kRows)};
      TestVector<float> scratch{std::vector<float>(
          static_cast<size_t>(LayerNormScratchBytes(shape)) / 4)};
      EXPECT_THAT(LayerNormForward(shape, x.data(), weight.data(), bias.data(),
                                   y.data(), rows.data(), nullptr),
                  IsOk());
      EXPECT_THAT(LayerNormBackwardParameters(
                      shape, x.data(), rows.data(), dy.data(), dweight.data(),
                      dbias.data(), scratch.data(), nullptr),
                  IsOk());
      EXPECT_THAT(
          LayerNormBackwardInput(shape, x.data(), weight.data(), rows.data(),
                                 dy.data(), dy.data(), nullptr),
          IsOk());
      return Results{{y.Read(), dy.Read()}, {dweight.Read(), dbias.Read()}};
    };
  });
  EXPECT_GT(inexact_, kCount);
}

TEST_F(StepTypesTest, Softmax) {
  constexpr int64_t kRows = 9, kColumns = 197, kCount = kRows * kColumns;
  ExpectOneRounding([&](DataType inputs) -> Kernel {
    std::vector<float> p = Rounded(inputs, Normal(kCount, 1));
    return [=](DataType type) {
      TestVector<float> scores(Normal(kCount, 2)), dp(Normal(kCount, 3));
      TestActivations softmax(type, p), of_scores(type, p), ds(type, p);
      EXPECT_THAT(SoftmaxForward(type, kRows, kColumns, scores.data(),
                                 softmax.data(), nullptr),
                  IsOk());
      EXPECT_THAT(SoftmaxBackward(type, kRows, kColumns, of_scores.data(),
                                  dp.data(), ds.data(), nullptr),
                  IsOk());
      return Results{{softmax.Read(), ds.Read()}, {}};
    };
  });
  EXPECT_GT(inexact_, kCount);
}

TEST_F(StepTypesTest, SequencesAndHeads) {
  constexpr int64_t kN = 3, kLength = 5, kWidth = 24;
  constexpr int64_t kCount = kN * kLength * kWidth;
  ExpectOneRounding([&](DataType inputs) -> Kernel {
    const std::vector<float> a = Rounded(inputs, Normal(kCount, 1));
    return [=](DataType type) {
      const SequenceShape shape = {
          .n = kN, .length = kLength, .width = kWidth, .type = type};
      const HeadShape heads = {.n = kN,
                               .length = kLength,
                               .heads = 3,
                               .size = kWidth / 3,
                               .part_stride = kCount,
                               .type = type};
      TestVector<float> token(Normal(kWidth, 3)), dtoken(Normal(kWidth, 3));
      TestVector<float> position(Normal(kLength * kWidth, 4)),
          dposition(Normal(kLength * kWidth, 4));
      TestActivations x(type, a), y(type, a), dx(type, a), first(type, a);
      TestActivations back(type, a), split(type, a), joined(type, a);
      EXPECT_THAT(EmbedForward(shape, x.data(), token.data(), position.data(),
                               y.data(), nullptr),
                  IsOk());
      EXPECT_THAT(EmbedBackward(shape, x.data(), dx.data(), dtoken.data(),
                                dposition.data(), nullptr),
                  IsOk());
      EXPECT_THAT(FirstPositionForward(shape, x.data(), first.data(), nullptr),
                  IsOk());
      EXPECT_THAT(FirstPositionBackward(shape, x.data(), back.data(), nullptr),
                  IsOk());
      EXPECT_THAT(SplitHeads(heads, x.data(), split.data(), nullptr), IsOk());
      EXPECT_THAT(JoinHeads(heads, x.data(), joined.data(), nullptr), IsOk());
      return Results{{y.Read(), dx.Read(), first.Read(), back.Read(),
                      split.Read(), joined.Read()},
                     {dtoken.Read(), dposition.Read()}};
    };
  });
  EXPECT_GT(inexact_, kCount / 2);
}

TEST_F(StepTypesTest, RandomMasks) {
  constexpr int64_t kN = 4, kSize = 600, kCount = kN * kSize;
  const DeviceMaskKey key = {{.seed = 1, .step = 2, .layer = 3, .rate = 0.3}};
  ExpectOneRounding([&](DataType inputs) -> Kernel {
    const std::vector<float> a = Rounded(inputs, Normal(kCount, 1));
    const std::vector<float> b = Rounded(inputs, Normal(kCount, 2));
    return [=](DataType type) {
      TestActivations x(type, a), branch(type, b), y(type, a), dropped(type, a);
      TestActivations dx(type, b), dbranch(type, b);
      EXPECT_THAT(
          DropOutOnGpu(key, type, kN, kSize, x.data(), dropped.data(), nullptr),
          IsOk());
      EXPECT_THAT(AddBranch(key, type, kN, kSize, x.data(), branch.data(),
                            y.data(), nullptr),
                  IsOk());
      EXPECT_THAT(AddBranchBackward(key, type, kN, kSize, x.data(), dx.data(),
                                    dbranch.data(), nullptr),
                  IsOk());
      return Results{{dropped.Read(), y.Read(), dx.Read(), dbranch.Read()}, {}};
    };
  });
  EXPECT_GT(inexact_, kCount);
}

}  // namespace
}  // namespace lockstep
