#include "benchmarks/step/roofline.h"

#include <cstdint>

#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

namespace lockstep::benchmarks {
namespace {

// The expected number is computed by hand: each layer's products forward, and
// twice as many backward, without the image's gradient.
TEST(StepFlopsTest, CountsLeNets) {
  const int64_t forward[] = {2 * 26 * 26 * 20 * 9, 2 * 9 * 9 * 50 * 20 * 25,
                             2 * 800 * 128, 2 * 128 * 10};
  int64_t flops = -forward[0];
  for (const int64_t layer : forward) flops += 3 * layer;
  EXPECT_EQ(StepFlops(*CreateNetwork("lenet"), 256), 256 * flops);
}

TEST(WorkOfTest, CountsEachTensorOnce) {
  const Network network = *CreateNetwork("lenet");
  const int last = static_cast<int>(network.operations().size()) - 1;
  const int64_t weights = 128 * 10, parameters = weights + 10;
  const int64_t in = 8 * 128, out = 8 * 10;
  const OperationWork work = WorkOf(network, last, 8, DataType::kFloat32);
  EXPECT_EQ(work.forward_bytes, 4 * (in + out + parameters));
  EXPECT_EQ(work.backward_bytes, 4 * (out + 2 * in + weights + parameters));
  const OperationWork half = WorkOf(network, last, 8, DataType::kBFloat16);
  EXPECT_EQ(half.forward_bytes, 2 * (in + out + parameters));
  EXPECT_EQ(half.backward_bytes, 2 * (out + 2 * in + weights) + 4 * parameters);
  // Backward of the first convolution reads its output for ReLU. It reads no
  // weights, because the image has no gradient. The bytes are those of dy, y,
  // the image, and the parameters' gradients.
  const OperationWork first = WorkOf(network, 0, 8, DataType::kFloat32);
  EXPECT_EQ(first.backward_bytes,
            4 * (2 * 8 * 26 * 26 * 20 + 8 * 28 * 28 + 20 * 9 + 20));
}

// The expected bytes are computed by hand, for 5 samples of 2 channels of 3x4:
// 120 numbers a tensor, 2 weights and 2 biases.
TEST(WorkOfTest, CountsBatchNormWithItsAdditionAndReLU) {
  Network network("small", {.n = 1, .c = 2, .h = 3, .w = 4});
  const lockstep::Value x = network.Convolution(
      "conv", network.input(), {.out = 2, .kernel = 1, .bias = false});
  const lockstep::Value y = network.BatchNorm("open", x, /*relu=*/true);
  const lockstep::Value z = network.BatchNorm("plain", y, /*relu=*/false);
  network.BatchNormAddRelu("add", z, y);
  ASSERT_THAT(network.status(), IsOk());
  struct {
    int operation;
    DataType type;
    int64_t forward_bytes, backward_bytes;
  } const cases[] = {
      // Forward moves x, y; backward moves dy, x, y, dx.
      {1, DataType::kFloat32, 4 * (2 * 120 + 4), 4 * (4 * 120 + 2 + 4)},
      // Forward moves x, y; backward moves dy, x, dx. Without ReLU, backward
      // does not read y.
      {2, DataType::kFloat32, 4 * (2 * 120 + 4), 4 * (3 * 120 + 2 + 4)},
      // Forward moves x, residual, y; backward moves dy, x, y, dx, dresidual,
      // but not the residual.
      {3, DataType::kFloat32, 4 * (3 * 120 + 4), 4 * (5 * 120 + 2 + 4)},
      // The parameters are float32 in bfloat16 too.
      {3, DataType::kBFloat16, 2 * 3 * 120 + 4 * 4, 2 * 5 * 120 + 4 * (2 + 4)}};
  for (const auto& [operation, type, forward, backward] : cases) {
    const OperationWork work = WorkOf(network, operation, 5, type);
    EXPECT_EQ(work.forward_bytes, forward) << operation;
    EXPECT_EQ(work.backward_bytes, backward) << operation;
  }
}

TEST(WorkOfTest, CountsWhatPoolingKeeps) {
  Network network("small", {.n = 1, .c = 2, .h = 4, .w = 4});
  const lockstep::Value x = network.Convolution(
      "conv", network.input(), {.out = 2, .kernel = 1, .bias = false});
  network.Pool("max", x, {.maximum = true, .kernel = 2, .stride = 2});
  network.Pool("average", x, {.maximum = false, .kernel = 2, .stride = 2});
  const int64_t in = 3 * 2 * 4 * 4, out = 3 * 2 * 2 * 2;
  const OperationWork maximum = WorkOf(network, 1, 3, DataType::kFloat32);
  EXPECT_EQ(maximum.forward_bytes, 4 * (in + out) + out);
  EXPECT_EQ(maximum.backward_bytes, 4 * (in + out) + out);
  const OperationWork average = WorkOf(network, 2, 3, DataType::kFloat32);
  EXPECT_EQ(average.forward_bytes, 4 * (in + out));
  EXPECT_EQ(average.backward_bytes, 4 * (in + out));
}

}  // namespace
}  // namespace lockstep::benchmarks
