// Executes plans of attention: on the stand-ins, which need no GPU, or with
// CUDA and cuDNN on a GPU. Compares with attention in float64 on the host,
// within bounds that follow from the roundings to 16 bits.
#include <cuda_runtime.h>
#include <cudnn.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_graph.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cuda/cudnn_plan.h"
#include "models/cuda/fused_attention.h"
#include "syncbn/cuda/cuda_test_device.h"
#include "syncbn/cuda/cudnn_status.h"
#include "syncbn/testing/device_tensor.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

// The unit round-off of a 16-bit type, with 1/64 more for products of
// roundings and for the float32 sums.
double RoundOff(DataType type) {
  return (type == DataType::kFloat16 ? 0x1p-11 : 0x1p-8) * (1 + 1.0 / 64);
}

// Results with the bounds of their errors.
struct Bounded {
  explicit Bounded(size_t size) : value(size), bound(size) {}
  void Expect(const std::vector<double>& got, const char* what) const {
    ASSERT_EQ(got.size(), value.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(std::abs(got[i] - value[i]) <= bound[i])
          << what << " " << i << ": " << got[i] << ", not " << value[i]
          << " within " << bound[i];
    }
  }
  std::vector<double> value, bound;
};

// Attention of one head of one sample in float64, from the definition.
class Head {
 public:
  // qkv, y, dy: as in AttentionOperands; sample, head: this head.
  Head(const AttentionGraph& g, int64_t sample, int64_t head)
      : g_(g), sample_(sample), head_(head) {}

  // Returns the place in qkv, if `part` is 0 to 2, of an element.
  size_t In(int64_t part, int64_t row, int64_t i) const {
    return static_cast<size_t>(
        (((sample_ * g_.length + row) * 3 + part) * g_.heads + head_) *
            g_.size +
        i);
  }
  // Returns the place in y.
  size_t Joined(int64_t row, int64_t i) const {
    return static_cast<size_t>(
        ((sample_ * g_.length + row) * g_.heads + head_) * g_.size + i);
  }
  size_t Row(int64_t row) const {
    return static_cast<size_t>((sample_ * g_.heads + head_) * g_.length + row);
  }

  // Fills y and statistics of this head, and keeps p.
  void Forward(const std::vector<double>& qkv, Bounded& y,
               Bounded& statistics) {
    const double u = RoundOff(g_.type);
    const int64_t length = g_.length;
    const double scale = 1 / std::sqrt(static_cast<double>(g_.size));
    p_.assign(static_cast<size_t>(length * length), 0);
    errors_.clear();
    for (int64_t i = 0; i < length; ++i) {
      double* const p = p_.data() + i * length;
      double highest = -INFINITY, sum = 0, largest = 0;
      for (int64_t j = 0; j < length; ++j) {
        double size_of_score = 0;
        for (int64_t k = 0; k < g_.size; ++k) {
          const double term = scale * qkv[In(0, i, k)] * qkv[In(1, j, k)];
          p[j] += term;
          size_of_score += std::abs(term);
        }
        highest = std::max(highest, p[j]);
        largest = std::max(largest, size_of_score);
      }
      for (int64_t j = 0; j < length; ++j) sum += std::exp(p[j] - highest);
      const double logarithm = highest + std::log(sum);
      // Scores are sums of `size` products in float32, and their exponentials'
      // sum has `length` terms.
      const double error = SumError() * (largest + std::abs(logarithm)) +
                           static_cast<double>(length) * 0x1p-24;
      errors_.push_back(error);
      statistics.value[Row(i)] = logarithm;
      statistics.bound[Row(i)] = error;
      for (int64_t j = 0; j < length; ++j) p[j] = std::exp(p[j] - logarithm);
      for (int64_t k = 0; k < g_.size; ++k) {
        double all = 0;
        for (int64_t j = 0; j < length; ++j) {
          const double term = p[j] * qkv[In(2, j, k)];
          y.value[Joined(i, k)] += term;
          all += std::abs(term);
        }
        // p, perhaps before its division by the sum, and y are rounded.
        y.bound[Joined(i, k)] = (2 * u + 2 * error) * all;
      }
    }
  }

  // Fills dqkv of this head. y: as the forward pass rounded it.
  void Backward(const std::vector<double>& qkv, const std::vector<double>& y,
                const std::vector<double>& dy, Bounded& dqkv) const {
    const double u = RoundOff(g_.type);
    const double scale = 1 / std::sqrt(static_cast<double>(g_.size));
    for (int64_t i = 0; i < g_.length; ++i) {
      double sum = 0, size_of_sum = 0;
      for (int64_t k = 0; k < g_.size; ++k) {
        const double term = y[Joined(i, k)] * dy[Joined(i, k)];
        sum += term;
        size_of_sum += std::abs(term);
      }
      for (int64_t j = 0; j < g_.length; ++j) {
        const double p = p_[static_cast<size_t>(i * g_.length + j)];
        double dp = 0, size_of_dp = 0;
        for (int64_t k = 0; k < g_.size; ++k) {
          const double term = dy[Joined(i, k)] * qkv[In(2, j, k)];
          dp += term;
          size_of_dp += std::abs(term);
        }
        const double ds = scale * p * (dp - sum);
        // p has the errors of a score and of its row's statistics. ds is
        // rounded; before that, its sums have float32's errors.
        const double of_p = 2 * errors_[static_cast<size_t>(i)];
        const double ds_bound =
            (u + of_p) * std::abs(ds) +
            SumError() * scale * p * (size_of_dp + size_of_sum);
        for (int64_t k = 0; k < g_.size; ++k) {
          Add(In(2, j, k), p, (u + of_p) * p, dy[Joined(i, k)], dqkv);
          Add(In(1, j, k), ds, ds_bound, qkv[In(0, i, k)], dqkv);
          Add(In(0, i, k), ds, ds_bound, qkv[In(1, j, k)], dqkv);
        }
      }
    }
  }

 private:
  // Adds a * b, where a has an error of at most `error`, to a result, whose sum
  // is rounded.
  void Add(size_t place, double a, double error, double b,
           Bounded& result) const {
    result.value[place] += a * b;
    result.bound[place] +=
        (error + RoundOff(g_.type) * std::abs(a)) * std::abs(b);
  }

  // Returns the relative error of a sum of `size` products in float32, and of
  // a few operations on it.
  double SumError() const {
    return (static_cast<double>(g_.size) + 8) * 0x1p-24;
  }

  const AttentionGraph& g_;
  const int64_t sample_, head_;
  std::vector<double> p_;
  std::vector<double> errors_;  // Of the scores and the statistics, by row.
};

// Returns numbers in [-most, most] that 16 bits hold exactly.
std::vector<double> Numbers(int64_t count, uint32_t seed, double most) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525 + 1013904223;
    values.push_back((static_cast<double>((seed >> 16) % 65) / 32 - 1) * most);
  }
  return values;
}

class FusedAttentionRunTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudnnCreate(&handle_), CUDNN_STATUS_SUCCESS);
    owner_.reset(handle_);
  }

  // Enqueues a pass with new workspace, which lives until the stream is done.
  void Execute(const AttentionGraph& graph, const AttentionOperands& operands) {
    const absl::StatusOr<CudnnDevice> card = CudnnDevice::OfHandle(handle_);
    ASSERT_THAT(card, IsOk());
    const auto plan = FusedAttentionPlan::Create(*card, graph);
    ASSERT_THAT(plan, IsOk());
    auto workspace = AllocateDeviceMemory(plan->workspace_bytes() + 1);
    ASSERT_THAT(workspace, IsOk());
    EXPECT_THAT(plan->Execute(handle_, operands, workspace->get()), IsOk());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  void Check(AttentionGraph g) {
    SCOPED_TRACE(Describe(g));
    const int64_t count = g.n * g.length * g.heads * g.size;
    const DeviceTensor qkv(g.type, Numbers(3 * count, 1, 2));
    const DeviceTensor dy(g.type, Numbers(count, 2, 1));
    const DeviceTensor y(g.type, count), dqkv(g.type, 3 * count);
    const DeviceTensor statistics(DataType::kFloat32, g.n * g.heads * g.length);
    const AttentionOperands operands = {
        .qkv = qkv.buffer().data,
        .y = y.buffer().data,
        .statistics = static_cast<float*>(statistics.buffer().data),
        .dy = dy.buffer().data,
        .dqkv = dqkv.buffer().data};
    Execute(g, operands);
    g.pass = AttentionPass::kBackward;
    Execute(g, operands);
    if (HasFatalFailure()) return;

    Bounded want_y(static_cast<size_t>(count));
    Bounded want_dqkv(static_cast<size_t>(3 * count));
    Bounded want_statistics(static_cast<size_t>(g.n * g.heads * g.length));
    const std::vector<double> rounded_y = y.Read();
    for (int64_t sample = 0; sample < g.n; ++sample) {
      for (int64_t head = 0; head < g.heads; ++head) {
        Head one(g, sample, head);
        one.Forward(qkv.values(), want_y, want_statistics);
        one.Backward(qkv.values(), rounded_y, dy.values(), want_dqkv);
      }
    }
    want_y.Expect(rounded_y, "y");
    want_statistics.Expect(statistics.Read(), "statistics");
    want_dqkv.Expect(dqkv.Read(), "dqkv");
  }

  cudnnHandle_t handle_ = nullptr;
  CudnnOwner<cudnnHandle_t> owner_;
};

TEST_F(FusedAttentionRunTest, BothPassesAreThoseOfTheDefinition) {
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
    for (const AttentionGraph& shape : std::vector<AttentionGraph>{
             {.name = "one", .length = 2},
             {.name = "odd", .n = 2, .heads = 3, .length = 7, .size = 24},
             {.name = "vit", .heads = 2, .length = 197, .size = 64},
             {.name = "most", .n = 3, .length = 65, .size = 128}}) {
      AttentionGraph graph = shape;
      graph.type = type;
      Check(graph);
    }
  }
}

// On a GPU, so many keys and heads that blocks which add to one gradient end in
// another order in each run.
TEST_F(FusedAttentionRunTest, HasTheSameBitsInEveryRun) {
#ifdef LOCKSTEP_CUDA_STANDIN
  AttentionGraph g = {.name = "bits", .heads = 2, .length = 97};
  constexpr int kRuns = 2;
#else
  AttentionGraph g = {.name = "bits", .n = 16, .heads = 16, .length = 1021};
  constexpr int kRuns = 10;
#endif
  g.size = 64;
  const int64_t count = g.n * g.length * g.heads * g.size;
  const DeviceTensor qkv(g.type, Numbers(3 * count, 3, 2));
  const DeviceTensor dy(g.type, Numbers(count, 4, 1));
  std::string first;
  for (int run = 0; run < kRuns; ++run) {
    const DeviceTensor y(g.type, count), dqkv(g.type, 3 * count);
    const DeviceTensor statistics(DataType::kFloat32, g.n * g.heads * g.length);
    for (const auto pass :
         {AttentionPass::kForward, AttentionPass::kBackward}) {
      g.pass = pass;
      Execute(g, {.qkv = qkv.buffer().data,
                  .y = y.buffer().data,
                  .statistics = static_cast<float*>(statistics.buffer().data),
                  .dy = dy.buffer().data,
                  .dqkv = dqkv.buffer().data});
    }
    if (HasFatalFailure()) return;
    const std::string bytes = y.Bytes() + dqkv.Bytes();
    if (run == 0) first = bytes;
    EXPECT_EQ(bytes == first, true) << run;
  }
}

// A graph holds the scalars that the captured call was given, and reads the
// tensors anew at each launch.
TEST_F(FusedAttentionRunTest, IsReplayedByGraphs) {
  AttentionGraph g = {.name = "graph", .n = 2, .heads = 3, .length = 17};
  g.size = 16;
  const int64_t count = g.n * g.length * g.heads * g.size;
  const absl::StatusOr<CudnnDevice> card = CudnnDevice::OfHandle(handle_);
  ASSERT_THAT(card, IsOk());
  const auto forward = FusedAttentionPlan::Create(*card, g);
  g.pass = AttentionPass::kBackward;
  const auto backward = FusedAttentionPlan::Create(*card, g);
  ASSERT_THAT(forward, IsOk());
  ASSERT_THAT(backward, IsOk());
  auto workspace = AllocateDeviceMemory(
      std::max(forward->workspace_bytes(), backward->workspace_bytes()) + 1);
  ASSERT_THAT(workspace, IsOk());
  absl::StatusOr<Stream> stream = MakeStream();
  ASSERT_THAT(stream, IsOk());
  ASSERT_EQ(cudnnSetStream(handle_, stream->get()), CUDNN_STATUS_SUCCESS);

  const DeviceTensor qkv(g.type, Numbers(3 * count, 5, 2));
  const DeviceTensor later(g.type, Numbers(3 * count, 6, 2));
  const DeviceTensor dy(g.type, Numbers(count, 7, 1));
  const DeviceTensor y(g.type, count), dqkv(g.type, 3 * count);
  const DeviceTensor statistics(DataType::kFloat32, g.n * g.heads * g.length);
  const auto both = [&](const DeviceTensor& from) -> absl::Status {
    const AttentionOperands operands = {
        .qkv = from.buffer().data,
        .y = y.buffer().data,
        .statistics = static_cast<float*>(statistics.buffer().data),
        .dy = dy.buffer().data,
        .dqkv = dqkv.buffer().data};
    LOCKSTEP_RETURN_IF_ERROR(
        forward->Execute(handle_, operands, workspace->get()));
    return backward->Execute(handle_, operands, workspace->get());
  };
  ASSERT_THAT(both(later), IsOk());
  const std::string want = y.Bytes() + dqkv.Bytes();
  const absl::StatusOr<Graph> graph =
      CaptureGraph(stream->get(), [&] { return both(qkv); });
  ASSERT_THAT(graph, IsOk());
  ASSERT_EQ(cudaGraphLaunch(graph->get(), stream->get()), cudaSuccess);
  EXPECT_NE(y.Bytes() + dqkv.Bytes(), want);
  ASSERT_EQ(cudaMemcpyAsync(qkv.buffer().data, later.buffer().data,
                            3 * count * SizeOf(g.type),
                            cudaMemcpyDeviceToDevice, stream->get()),
            cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(graph->get(), stream->get()), cudaSuccess);
  EXPECT_EQ(y.Bytes() + dqkv.Bytes(), want);
}

}  // namespace
}  // namespace lockstep
