// Tests the results of plans of cuDNN's stand-in, and their order on streams.
#include "standin/cudnn/cudnn_graph.h"

#include <cuda_runtime.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/data_types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "standin/control.h"
#include "standin/cudnn/graph_fixture.h"
#include "standin/elements.h"

namespace lockstep::standin::cudnn {
namespace {

using testing::Each;
using testing::ElementsAre;

using CudnnGraphTest = CudnnGraphFixture;

// Returns the convolution's products, from its definition, for tensors that are
// packed as [n, c, h, w]. visit(x, w, y) gets the indices of each product.
template <typename Visit>
void ForEachProduct(const Dims& x, const Dims& w, const Dims& y,
                    const Geometry& g, const Visit& visit) {
  const auto at = [](const Dims& dims, int64_t i, int64_t j, int64_t k,
                     int64_t l) {
    return static_cast<size_t>(((i * dims[1] + j) * dims[2] + k) * dims[3] + l);
  };
  for (int64_t i = 0; i < y[0] * y[1] * y[2] * y[3]; ++i) {
    const int64_t n = i / (y[1] * y[2] * y[3]), k = i / (y[2] * y[3]) % y[1];
    const int64_t oh = i / y[3] % y[2], ow = i % y[3];
    for (int64_t j = 0; j < w[1] * w[2] * w[3]; ++j) {
      const int64_t c = j / (w[2] * w[3]), r = j / w[3] % w[2], s = j % w[3];
      const int64_t h = oh * g.strides[0] + r * g.dilations[0] - g.pre[0];
      const int64_t v = ow * g.strides[1] + s * g.dilations[1] - g.pre[1];
      if (h < 0 || h >= x[2] || v < 0 || v >= x[3]) continue;
      visit(at(x, n, c, h, v), at(w, k, c, r, s), at(y, n, k, oh, ow));
    }
  }
}

std::vector<float> Integers(size_t count, int seed) {
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    seed = (seed * 31 + 7) % 101;
    values.push_back(static_cast<float>(seed % 7 - 3));
  }
  return values;
}

TEST_F(CudnnGraphTest, ComputesEveryPassFromItsDefinition) {
  const Dims x = {2, 3, 6, 7}, w = {4, 3, 3, 2}, y = {2, 4, 3, 5};
  const Geometry g = {
      .strides = {1, 2}, .dilations = {2, 1}, .pre = {0, 1}, .post = {1, 2}};
  const std::vector<float> xs = Integers(252, 1), ws = Integers(72, 2),
                           ys = Integers(120, 3);
  for (const Names& names :
       {kForwardNames, kInputGradientNames, kWeightGradientNames}) {
    const Memory on_x(xs), on_w(ws), on_y(ys);
    const Memory& written = names.type == kForwardNames.type         ? on_y
                            : names.type == kInputGradientNames.type ? on_x
                                                                     : on_w;
    std::vector<float> want(written.Read().size());
    ForEachProduct(x, w, y, g, [&](size_t i, size_t j, size_t k) {
      if (&written == &on_y) want[k] += xs[i] * ws[j];
      if (&written == &on_x) want[i] += ys[k] * ws[j];
      if (&written == &on_w) want[j] += ys[k] * xs[i];
    });
    Execute(Plan({Finalized(UnfinishedConvolution(
                names, Tensor(kX, x), Tensor(kW, w), Tensor(kY, y), g))}),
            on_x, on_w, on_y);
    EXPECT_EQ(written.Read(), want) << names.type;
  }
}

TEST_F(CudnnGraphTest, FollowsStrides) {
  // Rows of x are 4 elements apart, and y is transposed.
  const Memory x({1, 2, 3, 99, 4, 5, 6, 99}), w({1, 10}), y(size_t{16});
  const auto run = [&](int64_t row) {
    const Descriptor on_x =
        Finalized(UnfinishedTensor(kX, {1, 1, 2, 3}, {8, 8, row, 1}));
    const Descriptor on_y =
        Finalized(UnfinishedTensor(kY, {1, 1, 2, 2}, {4, 4, 1, 2}));
    Execute(Plan({Finalized(UnfinishedConvolution(
                kForwardNames, on_x, Tensor(kW, {1, 1, 1, 2}), on_y))}),
            x, w, y);
    return y.Read();
  };
  EXPECT_THAT(run(4), ElementsAre(21, 54, 32, 65));
  // A wrong stride gives another result.
  EXPECT_THAT(run(3), ElementsAre(21, 139, 32, 54));
}

TEST_F(CudnnGraphTest, AddsAndClips) {
  const Dims dims = {1, 2, 1, 2};
  const Descriptor sum = Tensor(kSum, dims, CUDNN_DATA_FLOAT, true);
  const Descriptor plan =
      Plan({Finalized(UnfinishedPointwise(Tensor(kX, dims),
                                          Tensor(kBias, {1, 2, 1, 1}), sum)),
            Finalized(UnfinishedPointwise(sum, nullptr, Tensor(kY, dims)))});
  const Memory x({1, -5, NAN, 4}), bias({2, 10}), y(size_t{16});
  Ok(cudnnBackendExecute(
      handle_, plan,
      Finalized(Pack({kX, kBias, kY}, {x.data(), bias.data(), y.data()},
                     workspace_.data()))));
  EXPECT_THAT(y.Read(), ElementsAre(3, 0, testing::IsNan(), 14));
}

// The sum is 1 + 2^-8 + 2^-30. In float32 it would be 1 + 2^-8, halfway between
// two numbers of bfloat16, and a second rounding would give 1.
TEST_F(CudnnGraphTest, RoundsEachSumOnce) {
  constexpr auto kType = CUDNN_DATA_BFLOAT16;
  const Memory x(size_t{6}), w(size_t{6}), y(size_t{2});
  for (int64_t i = 0; i < 3; ++i) {
    WriteElement(DataType::kBFloat16, std::array{1.0, 0x1p-8, 0x1p-30}[i],
                 x.data(), i);
    WriteElement(DataType::kBFloat16, 1, w.data(), i);
  }
  Execute(
      Plan({Finalized(UnfinishedConvolution(
          kForwardNames, Tensor(kX, {1, 3, 1, 1}, kType),
          Tensor(kW, {1, 3, 1, 1}, kType), Tensor(kY, {1, 1, 1, 1}, kType)))}),
      x, w, y);
  EXPECT_EQ(ReadElement(DataType::kBFloat16, y.data(), 0), 1 + 0x1p-7);
  for (const double sign : {1, -1}) {
    WriteElement(DataType::kBFloat16, sign * 1e300, y.data(), 0);
    EXPECT_EQ(ReadElement(DataType::kBFloat16, y.data(), 0), sign * INFINITY);
  }
}

TEST_F(CudnnGraphTest, RunsInTheOrderOfItsStream) {
  const Descriptor plan = Plan({SmallConvolution()});
  const Memory x({1, 2, 3, 4, 5, 6}), later({2, 4, 6, 8, 10, 12});
  const Memory w({1, 10}), y(size_t{16}), first(size_t{16});
  const auto copy = [&](const Memory& to, const Memory& from, size_t bytes) {
    Ok(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice,
                       newer_));
  };
  SetSchedule({.order = Order::kOldestStreamFirst});
  Execute(plan, x, w, y);
  copy(first, y, 16);
  copy(x, later, 24);
  Execute(plan, x, w, y);
  EXPECT_THAT(y.Read(), Each(testing::IsNan()));  // Held back.
  Ok(cudaStreamSynchronize(newer_));
  EXPECT_THAT(first.Read(), ElementsAre(21, 32, 54, 65));
  EXPECT_THAT(y.Read(), ElementsAre(42, 64, 108, 130));
}

TEST_F(CudnnGraphTest, WaitsForEventsUnlessTheyAreDropped) {
  const Descriptor plan = Plan({SmallConvolution()});
  const Memory later({2, 4, 6, 8, 10, 12}), w({1, 10});
  cudaEvent_t written = nullptr;
  Ok(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
  for (const DroppedWaits dropped :
       {DroppedWaits::kNone, DroppedWaits::kOfNewerStreams}) {
    const Memory x({1, 2, 3, 4, 5, 6}), y(size_t{16});
    SetSchedule({.order = Order::kNewestStreamFirst, .dropped_waits = dropped});
    Ok(cudaMemcpyAsync(x.data(), later.data(), 24, cudaMemcpyDeviceToDevice,
                       older_));
    Ok(cudaEventRecord(written, older_));
    Ok(cudaStreamWaitEvent(newer_, written));
    Execute(plan, x, w, y);
    Ok(cudaDeviceSynchronize());
    const float one = dropped == DroppedWaits::kNone ? 42 : 21;
    EXPECT_EQ(y.Read()[0], one);
  }
  Ok(cudaEventDestroy(written));
}

TEST_F(CudnnGraphTest, NeedsAStreamOfTheCurrentDevice) {
  const Memory x({1, 2, 3, 4, 5, 6}), w({1, 10}), y(size_t{16});
  const Descriptor plan = Plan({SmallConvolution()});
  const Descriptor pack = Finalized(
      Pack({kX, kW, kY}, {x.data(), w.data(), y.data()}, workspace_.data()));
  standin::SetDevices({.count = 2});
  Ok(cudaSetDevice(1));
  EXPECT_NE(cudnnBackendExecute(handle_, plan, pack), CUDNN_STATUS_SUCCESS);
  Ok(cudaSetDevice(0));
  standin::SetDevices({.count = 1});
  Ok(cudnnBackendExecute(handle_, plan, pack));
}

TEST_F(CudnnGraphTest, IsReplayedByGraphs) {
  Memory x({1, 2, 3, 4, 5, 6});
  const Memory w({1, 10}), y(size_t{16});
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  size_t nodes = 0;
  Ok(cudaStreamBeginCapture(newer_, cudaStreamCaptureModeGlobal));
  Execute(Plan({SmallConvolution()}), x, w, y);
  Ok(cudaStreamEndCapture(newer_, &graph));
  Ok(cudaGraphGetNodes(graph, nullptr, &nodes));
  Ok(cudaGraphInstantiate(&executable, graph));
  EXPECT_EQ(nodes, 1u);
  EXPECT_THAT(y.Read(), Each(testing::IsNan()));
  for (const float scale : {1.0f, 2.0f}) {
    x.Write({scale * 1, scale * 2, scale * 3, scale * 4, scale * 5, scale * 6});
    Ok(cudaGraphLaunch(executable, older_));
    Ok(cudaStreamSynchronize(older_));
    EXPECT_THAT(y.Read(),
                ElementsAre(scale * 21, scale * 32, scale * 54, scale * 65));
  }
  Ok(cudaGraphExecDestroy(executable));
  Ok(cudaGraphDestroy(graph));
}

TEST_F(CudnnGraphTest, OverwritesItsWorkspace) {
  const Descriptor plan = Plan({SmallConvolution()});
  const auto needed = static_cast<size_t>(WorkspaceOf(plan));
  EXPECT_GT(needed, 0u);
  workspace_.Write(std::vector<float>((size_t{1} << 12) / 4, 7));
  const Memory x({1, 2, 3, 4, 5, 6}), w({1, 10}), y(size_t{16});
  Execute(plan, x, w, y);
  const std::vector<float> left = workspace_.Read();
  const auto end = left.begin() + static_cast<std::ptrdiff_t>(needed / 4);
  EXPECT_THAT(std::vector(left.begin(), end), Each(testing::IsNan()));
  EXPECT_THAT(std::vector(end, left.end()), Each(7));

  // Tensors in the workspace are lost: y if it is written there, x before it is
  // read.
  const auto in_workspace = [&](int64_t uid) {
    std::vector<void*> pointers = {x.data(), w.data(), y.data()};
    pointers[static_cast<size_t>(uid - kX)] = workspace_.data();
    Ok(cudnnBackendExecute(
        handle_, plan,
        Finalized(Pack({kX, kW, kY}, pointers, workspace_.data()))));
  };
  in_workspace(kY);
  EXPECT_THAT(workspace_.Read()[0], testing::IsNan());
  workspace_.Write(std::vector<float>((size_t{1} << 12) / 4, 7));
  in_workspace(kX);
  EXPECT_THAT(y.Read(), Each(testing::IsNan()));
}

// An operand that shares memory with a result is lost before it is read.
TEST_F(CudnnGraphTest, OverwritesItsResultsFirst) {
  const Memory x({1, 2, 3, 4, 5, 6}), w({1, 1});
  Execute(Plan({SmallConvolution()}), x, w, x);
  std::vector<float> results = x.Read();
  results.resize(3);  // The fourth is the sum of x's last two elements.
  EXPECT_THAT(results, Each(testing::IsNan()));
}

}  // namespace
}  // namespace lockstep::standin::cudnn
