// Tests attention of cuDNN's stand-in, and the graph of its gradients, against
// plain loops in float64.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "standin/cudnn/attention_fixture.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/graph_fixture.h"

namespace lockstep::standin::cudnn {
namespace {

constexpr int64_t kQ = 1, kK = 2, kV = 3, kO = 4, kStats = 5, kScale = 6;
constexpr int64_t kGradient = 7, kSums = 8, kDq = 9, kDk = 10, kDv = 11;
// The memory of k and v, transposed.
constexpr int64_t kTurnedK = 12, kTurnedV = 13;
// Other tensors have this number and above.
constexpr int64_t kOthers = 20;

using CudnnAttentionTest = AttentionGraphFixture;

// Returns the largest relative error of a rounding to the type.
double UnitRoundoff(cudnnDataType_t type) {
  return type == kHalf ? 0x1p-11 : type == kBfloat ? 0x1p-8 : 0x1p-24;
}

// The inputs of attention: 2 batches of 3 heads, 5 queries and 7 keys.
struct Inputs {
  explicit Inputs(cudnnDataType_t type)
      : q(kQ, {2, 3, 5, 8}, type, Interleaved({2, 3, 5, 8})),
        k(kK, {2, 3, 7, 8}, type, Interleaved({2, 3, 7, 8})),
        v(kV, {2, 3, 7, 8}, type) {
    q.Fill(1, 0.5);
    k.Fill(2, 0.25);
    v.Fill(3, 0.5);
  }

  // Returns the scaled score of a query and a key.
  double Score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t d = 0; d < 8; ++d) {
      sum += q.at({b, h, i, d}) * k.at({b, h, j, d});
    }
    return scale * sum;
  }
  // Returns the log of the sum of the exponentials of a query's scores.
  double Stats(int64_t b, int64_t h, int64_t i) const {
    double sum = 0;
    for (int64_t j = 0; j < 7; ++j) sum += std::exp(Score(b, h, i, j));
    return std::log(sum);
  }

  const DeviceTensor q, k, v;
  float scale = 0.75;
};

// The probabilities and the output are rounded to the type. With u the largest
// relative error of a rounding, each adds at most u times the mean of |v|. The
// probabilities of float16 may be subnormal, with an absolute error of 2^-25.
TEST_F(CudnnAttentionTest, IsASoftmaxOfScoresTimesValues) {
  for (const cudnnDataType_t type : {kHalf, kBfloat}) {
    Inputs in(type);
    const DeviceTensor o(kO, in.q.dims, type, Interleaved(in.q.dims));
    const DeviceTensor stats(kStats, {2, 3, 5, 1}, kFloat);
    Enqueue({Finalized(UnfinishedAttention(Describe(in.q), Describe(in.k),
                                           Describe(in.v), Describe(o),
                                           Describe(stats), Scalar(kScale)))},
            {in.q, in.k, in.v, o, stats, {kScale, &in.scale}});
    ForEachIndex(o.dims, [&](const Dims& index) {
      const auto& [b, h, i, d] = index;
      const double want_stats = in.Stats(b, h, i);
      double want = 0, mean = 0;
      for (int64_t j = 0; j < 7; ++j) {
        const double p = std::exp(in.Score(b, h, i, j) - want_stats);
        want += p * in.v.at({b, h, j, d});
        mean += p * std::abs(in.v.at({b, h, j, d}));
      }
      const double bound = 2.01 * UnitRoundoff(type) * mean + 16 * 0x1p-25;
      EXPECT_TRUE(std::abs(o.at(index) - want) <= bound) << want;
      EXPECT_TRUE(std::abs(stats.at({b, h, i, 0}) - want_stats) <=
                  0x1p-24 * std::abs(want_stats) + 0x1p-40)
          << want_stats;
    });
  }
}

// The first value is minus the second's rounded exponential times 128: if the
// exponentials are rounded before the product, the output is exactly 0.
TEST_F(CudnnAttentionTest, RoundsExponentialsBeforeTheProduct) {
  const float scale = 0.7f;
  const double exponential = std::exp(-double{scale});
  for (const auto& [type, rounded] :
       {std::pair{kBfloat, std::round(exponential * 0x1p9) * 0x1p-9},
        std::pair{kHalf, std::round(exponential * 0x1p12) * 0x1p-12}}) {
    ASSERT_NE(rounded, exponential);
    const DeviceTensor q(kQ, {1, 1, 1, 8}, type), k(kK, {1, 1, 2, 8}, type);
    const DeviceTensor v(kV, {1, 1, 2, 8}, type), o(kO, {1, 1, 1, 8}, type);
    for (const DeviceTensor* const t : {&q, &k, &v}) t->Fill(0, 0);
    q.Set({}, 1);
    k.Set({0, 0, 1, 0}, -1);
    v.Set({}, -128 * rounded);
    v.Set({0, 0, 1, 0}, 128);
    float scalar = scale;
    Enqueue(
        {Finalized(UnfinishedAttention(Describe(q), Describe(k), Describe(v),
                                       Describe(o), nullptr, Scalar(kScale)))},
        {q, k, v, o, {kScale, &scalar}});
    EXPECT_EQ(o.at({}), 0);
  }
}

// The largest score is subtracted first: e^1024 is infinite in float64.
TEST_F(CudnnAttentionTest, DoesNotOverflow) {
  Inputs in(kBfloat);
  const DeviceTensor o(kO, in.q.dims, kBfloat);
  const DeviceTensor stats(kStats, {2, 3, 5, 1}, kFloat);
  in.q.Fill(0, 0);
  in.k.Fill(0, 0);
  in.q.Set({}, 32);
  in.k.Set({}, 32);
  in.scale = 1;
  Enqueue({Finalized(UnfinishedAttention(Describe(in.q), Describe(in.k),
                                         Describe(in.v), Describe(o),
                                         Describe(stats), Scalar(kScale)))},
          {in.q, in.k, in.v, o, stats, {kScale, &in.scale}});
  EXPECT_EQ(stats.at({}), 1024);
  for (int64_t d = 0; d < 8; ++d) {
    EXPECT_EQ(o.at({0, 0, 0, d}), in.v.at({0, 0, 0, d}));
  }
}

TEST_F(CudnnAttentionTest, RefusesDimensionsThatDoNotMatch) {
  const Dims queries = {2, 3, 5, 8}, keys = {2, 3, 7, 8};
  const auto attend = [&](const Dims& q, const Dims& k, const Dims& v,
                          const Dims& o, const Dims& stats,
                          cudnnDataType_t stats_type = kFloat) {
    return cudnnBackendFinalize(
        UnfinishedAttention(Tensor(kQ, q, kHalf), Tensor(kK, k, kHalf),
                            Tensor(kV, v, kHalf), Tensor(kO, o, kHalf),
                            Tensor(kStats, stats, stats_type), Scalar(kScale)));
  };
  const Dims stats = {2, 3, 5, 1};
  Ok(attend(queries, keys, keys, queries, stats));
  IsBad(attend(queries, keys, queries, queries, stats), "keys and values");
  for (const Dims& other :
       {Dims{1, 3, 7, 8}, Dims{2, 1, 7, 8}, Dims{2, 3, 7, 16}}) {
    IsBad(attend(queries, other, other, queries, stats), "keys and values");
  }
  IsBad(attend(queries, keys, keys, keys, stats), "the output");
  IsBad(attend(queries, keys, keys, queries, {2, 3, 7, 1}), "stats [2,3,7,1]");
  IsBad(attend(queries, keys, keys, queries, stats, kHalf), "float32");
  const auto scaled = [&](Descriptor scale) {
    const Descriptor k = Tensor(kK, keys, kHalf);
    return cudnnBackendFinalize(
        UnfinishedAttention(Tensor(kQ, queries, kHalf), k, k,
                            Tensor(kO, queries, kHalf), nullptr, scale));
  };
  Ok(scaled(Scalar(kScale)));
  IsBad(scaled(Tensor(kScale, {1, 1, 1, 2})), "one float32 number");
  IsBad(scaled(Tensor(kScale, {1, 1, 1, 1}, kHalf)), "one float32 number");
  Fails(scaled(Tensor(kScale, {1, 1, 1, 1})), CUDNN_STATUS_NOT_SUPPORTED,
        "by value");
}

TEST_F(CudnnAttentionTest, HasAnEngineFor16BitsAndModerateDepths) {
  const auto attend = [&](const std::vector<cudnnDataType_t>& types,
                          int64_t depth, int64_t last_stride, size_t strided) {
    const Dims dims = {1, 1, 2, depth};
    std::vector<Descriptor> tensors;
    for (size_t i = 0; i < 4; ++i) {
      Dims strides = Packed(dims);
      if (i == strided) {
        for (int64_t& stride : strides) stride *= last_stride;
      }
      tensors.push_back(Finalized(UnfinishedTensor(static_cast<int64_t>(i) + kQ,
                                                   dims, strides, types[i])));
    }
    return Finalized(UnfinishedAttention(tensors[0], tensors[1], tensors[2],
                                         tensors[3], nullptr, Scalar(kScale)));
  };
  const std::vector<cudnnDataType_t> halves(4, kHalf);
  EXPECT_EQ(CountProposals({attend(halves, 8, 1, 0)}), 1u);
  EXPECT_EQ(CountProposals({attend(halves, 128, 1, 0)}), 1u);
  EXPECT_EQ(CountProposals({attend(std::vector(4, kBfloat), 64, 1, 0)}), 1u);
  EXPECT_EQ(CountProposals({attend(halves, 12, 1, 0)}), 0u);
  EXPECT_EQ(CountProposals({attend(halves, 136, 1, 0)}), 0u);
  EXPECT_EQ(CountProposals({attend(std::vector(4, kFloat), 64, 1, 0)}), 0u);
  for (size_t i = 0; i < 4; ++i) {
    std::vector<cudnnDataType_t> mixed = halves;
    mixed[i] = kBfloat;
    EXPECT_EQ(CountProposals({attend(mixed, 64, 1, 0)}), 0u);
    EXPECT_EQ(CountProposals({attend(halves, 64, 2, i)}), 0u);
  }
  // Not together with other operations.
  const Dims dims = {1, 1, 2, 8};
  const Descriptor o = Tensor(kO, dims, kHalf), y = Tensor(kOthers, dims);
  EXPECT_EQ(CountProposals({attend(halves, 8, 1, 0),
                            Pointwise(CUDNN_POINTWISE_EXP, o, nullptr, y)}),
            0u);
  EXPECT_EQ(CountProposals({Matmul(Tensor(21, {1, 1, 2, 2}, kHalf),
                                   Tensor(22, dims, kHalf), y),
                            attend(halves, 8, 1, 0)}),
            0u);
}

// The gradients of attention as one graph. p are the probabilities, and a
// product's gradient is that with the other factor, transposed:
//   dv = p^T do, dp = do v^T, ds = scale p (dp - sum(do o)),
//   dk = ds^T q, dq = ds k.
class CudnnAttentionGradientTest
    : public AttentionGraphFixture,
      public testing::WithParamInterface<cudnnDataType_t> {
 protected:
  CudnnAttentionGradientTest() {
    output_gradient_.Fill(4, 0.25);
    ForEachIndex(stats_.dims, [&](const Dims& i) {
      stats_.Set(i, in_.Stats(i[0], i[1], i[2]));
    });
    // The gradient is defined for any o, so o need not be attention's.
    o_.Fill(5, 0.25);
  }

  // Each adds an operation and returns its virtual result.
  Descriptor AddPointwise(cudnnPointwiseMode_t mode, Descriptor x, Descriptor b,
                          const Dims& dims = kScores) {
    const Descriptor y = Virtual(next_++, dims);
    ops_.push_back(Pointwise(mode, x, b, y));
    return y;
  }
  Descriptor AddMatmul(Descriptor a, Descriptor b) {
    const Descriptor y = Virtual(next_++, kScores);
    ops_.push_back(Matmul(a, b, y));
    return y;
  }
  // Rounds scores to 16 bits, and exchanges their rows and columns if asked to.
  Descriptor AddReshape(Descriptor x, bool turned) {
    const Descriptor y =
        Finalized(turned ? UnfinishedTensor(next_++, {2, 3, 7, 5},
                                            {105, 35, 1, 7}, type_, true)
                         : UnfinishedTensor(next_++, kScores, Packed(kScores),
                                            type_, true));
    ops_.push_back(Reshape(x, y));
    return y;
  }

  void MakeGraph() {
    const Descriptor q = Describe(in_.q), scale = Scalar(kScale);
    const Descriptor gradient = Describe(output_gradient_);
    Descriptor p = AddMatmul(q, DescribeTransposed(kTurnedK, in_.k));
    p = AddPointwise(CUDNN_POINTWISE_MUL, p, scale);
    p = AddPointwise(CUDNN_POINTWISE_SUB, p, Describe(stats_));
    p = AddPointwise(CUDNN_POINTWISE_EXP, p, nullptr);
    const Descriptor turned_p = AddReshape(p, true);
    ops_.push_back(Matmul(turned_p, gradient, Describe(dv_)));

    const Descriptor sums = Describe(sums_);
    const Descriptor products =
        AddPointwise(CUDNN_POINTWISE_MUL, gradient, Describe(o_), o_.dims);
    ops_.push_back(Reduction(products, sums));
    Descriptor ds = AddMatmul(gradient, DescribeTransposed(kTurnedV, in_.v));
    ds = AddPointwise(CUDNN_POINTWISE_SUB, ds, sums);
    ds = AddPointwise(CUDNN_POINTWISE_MUL, p, ds);
    ds = AddPointwise(CUDNN_POINTWISE_MUL, ds, scale);
    const Descriptor turned_ds = AddReshape(ds, true);
    ops_.push_back(Matmul(turned_ds, q, Describe(dk_)));
    const Descriptor rounded_ds = AddReshape(ds, false);
    ops_.push_back(Matmul(rounded_ds, Describe(in_.k), Describe(dq_)));
  }

  double P(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return std::exp(in_.Score(b, h, i, j) - stats_.at({b, h, i, 0}));
  }
  // Returns a row of the output's gradient times a row of v or o.
  double Dot(const DeviceTensor& other, int64_t b, int64_t h, int64_t i,
             int64_t j) const {
    double sum = 0;
    for (int64_t d = 0; d < 8; ++d) {
      sum += output_gradient_.at({b, h, i, d}) * other.at({b, h, j, d});
    }
    return sum;
  }
  // Returns the gradient of an unscaled score, and with `magnitude` the sum of
  // its terms' magnitudes.
  double Ds(int64_t b, int64_t h, int64_t i, int64_t j, bool magnitude) const {
    const double dp = Dot(in_.v, b, h, i, j), sum = Dot(o_, b, h, i, i);
    return in_.scale * P(b, h, i, j) *
           (magnitude ? std::abs(dp) + std::abs(sum) : dp - sum);
  }

  // Expects each element of `got` to be the sum of term(index, l, false) over
  // l. term(index, l, true) is the sum of the magnitudes of that term's parts.
  //
  // With u the largest relative error of a rounding to 16 bits, a term's factor
  // and the result are rounded: 2 u. The scores and statistics are below 16, so
  // in float32 an exponent's error is below 4 * 16 * 2^-24, and each further
  // operation adds 2^-24: in all less than 2^-17. A subnormal factor in float16
  // has an absolute error of 2^-25, times another factor of at most 2.
  void Check(const DeviceTensor& got, int64_t terms,
             const std::function<double(const Dims&, int64_t, bool magnitude)>&
                 term) const {
    double largest = 0;
    ForEachIndex(got.dims, [&](const Dims& index) {
      double want = 0, magnitude = 0;
      for (int64_t l = 0; l < terms; ++l) {
        want += term(index, l, false);
        magnitude += term(index, l, true);
      }
      const double bound = (2.01 * UnitRoundoff(type_) + 0x1p-17) * magnitude +
                           static_cast<double>(terms) * 0x1p-23;
      ASSERT_TRUE(std::abs(got.at(index) - want) <= bound)
          << got.uid << ": " << got.at(index) << ", not " << want;
      largest = std::max(largest, std::abs(want));
    });
    EXPECT_GT(largest, 0.1);  // Else zeros might pass.
  }

  static constexpr Dims kScores = {2, 3, 5, 7};
  const cudnnDataType_t type_ = GetParam();
  Inputs in_{type_};
  const DeviceTensor o_{kO, in_.q.dims, type_};
  const DeviceTensor output_gradient_{kGradient, in_.q.dims, type_,
                                      Interleaved(in_.q.dims)};
  const DeviceTensor stats_{kStats, {2, 3, 5, 1}, kFloat};
  const DeviceTensor sums_{kSums, {2, 3, 5, 1}, kFloat};
  const DeviceTensor dq_{kDq, in_.q.dims, type_, Interleaved(in_.q.dims)};
  const DeviceTensor dk_{kDk, in_.k.dims, type_, Interleaved(in_.k.dims)};
  const DeviceTensor dv_{kDv, in_.v.dims, type_};
  std::vector<Descriptor> ops_;
  int64_t next_ = kOthers;
};

TEST_P(CudnnAttentionGradientTest, EqualsPlainLoops) {
  MakeGraph();
  Enqueue(ops_, {in_.q,
                 in_.k,
                 in_.v,
                 {kTurnedK, in_.k.data()},
                 {kTurnedV, in_.v.data()},
                 o_,
                 output_gradient_,
                 stats_,
                 sums_,
                 dq_,
                 dk_,
                 dv_,
                 {kScale, &in_.scale}});
  ForEachIndex(sums_.dims, [&](const Dims& i) {
    // The products are multiples of 1/16, so the sum is exact.
    ASSERT_EQ(sums_.at(i), Dot(o_, i[0], i[1], i[2], i[2]));
  });
  const auto part = [](double value, bool magnitude) {
    return magnitude ? std::abs(value) : value;
  };
  Check(dv_, 5, [&](const Dims& index, int64_t i, bool magnitude) {
    const auto& [b, h, j, d] = index;
    return P(b, h, i, j) * part(output_gradient_.at({b, h, i, d}), magnitude);
  });
  Check(dk_, 5, [&](const Dims& index, int64_t i, bool magnitude) {
    const auto& [b, h, j, d] = index;
    return Ds(b, h, i, j, magnitude) * part(in_.q.at({b, h, i, d}), magnitude);
  });
  Check(dq_, 7, [&](const Dims& index, int64_t j, bool magnitude) {
    const auto& [b, h, i, d] = index;
    return Ds(b, h, i, j, magnitude) * part(in_.k.at({b, h, j, d}), magnitude);
  });
}

INSTANTIATE_TEST_SUITE_P(Types, CudnnAttentionGradientTest,
                         testing::Values(kHalf, kBfloat), [](const auto& info) {
                           return info.param == kHalf ? "Float16" : "Bfloat16";
                         });

}  // namespace
}  // namespace lockstep::standin::cudnn
