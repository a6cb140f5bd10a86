// Tests the stand-in's operations on matrices against their definitions, and
// what their descriptors and graphs refuse.
#include "standin/cudnn/computation.h"

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "standin/control.h"
#include "standin/cudnn/attention_fixture.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/graph_fixture.h"

namespace lockstep::standin::cudnn {
namespace {

constexpr int64_t kA = 1, kB = 2, kC = 3, kZ = 4, kOut = 5;
constexpr Dims kOne = {1, 1, 1, 1};

class CudnnComputationTest : public AttentionGraphFixture {
 protected:
  // A product [2,3,5,7] of integers, z = a b, whose elements differ. A graph
  // needs a product for the stand-in to run it.
  CudnnComputationTest() {
    a_.Fill(1);
    b_.Fill(2);
  }

  double z(const Dims& i) const {
    double sum = 0;
    for (int64_t k = 0; k < 4; ++k) {
      sum += a_.at({i[0], i[1], i[2], k}) * b_.at({i[0], i[1], k, i[3]});
    }
    return sum;
  }
  Descriptor Product(Descriptor to) {
    return Matmul(Describe(a_), Describe(b_), to);
  }

  static constexpr Dims kDims = {2, 3, 5, 7};
  const DeviceTensor a_{kA, {2, 3, 5, 4}, kHalf, Interleaved({2, 3, 5, 4})};
  const DeviceTensor b_{kB, {2, 3, 4, 7}, kHalf, {84, 28, 1, 4}};
};

// Returns `dims` with 1 in the dimensions whose bits the mask has.
Dims Masked(const Dims& dims, unsigned mask) {
  Dims masked = dims;
  for (unsigned i = 0; i < 4; ++i) masked[i] = mask >> i & 1 ? 1 : dims[i];
  return masked;
}
// Returns the element of a tensor of dimensions `dims` that is repeated at
// `index`.
Dims Broadcast(const Dims& index, const Dims& dims) {
  Dims found = index;
  for (size_t i = 0; i < 4; ++i) found[i] = dims[i] == 1 ? 0 : index[i];
  return found;
}

TEST_F(CudnnComputationTest, MultipliesMatricesWithAnyStrides) {
  const DeviceTensor y(kOut, kDims, kFloat, Interleaved(kDims));
  Enqueue({Product(Describe(y))}, {a_, b_, y});
  ForEachIndex(kDims, [&](const Dims& i) { ASSERT_EQ(y.at(i), z(i)); });
}

// A virtual factor in float32 is rounded to the other factor's 16 bits. 257 has
// 9 significant bits, bfloat16 8; 2049 has 12, float16 11.
TEST_F(CudnnComputationTest, RoundsVirtualFactorsForTensorCores) {
  const auto multiply = [&](cudnnDataType_t type, double value, bool as_second,
                            bool both) {
    // s = value - 1 + 1 has more bits than the factors.
    const DeviceTensor x(kA, {1, 1, 1, 2}, type), ones(kB, {1, 1, 2, 1}, type);
    const DeviceTensor other(kC, kOne, type), y(kOut, kOne, kFloat);
    x.Set({0, 0, 0, 0}, value - 1);
    x.Set({0, 0, 0, 1}, 1);
    ones.Set({0, 0, 0, 0}, 1);
    ones.Set({0, 0, 1, 0}, 1);
    other.Set({0, 0, 0, 0}, 1);
    const Descriptor s = Virtual(kZ, kOne), second = Virtual(6, kOne);
    std::vector<Descriptor> ops = {Matmul(Describe(x), Describe(ones), s)};
    Descriptor factor = Describe(other);
    if (both) {
      ops.push_back(Matmul(Describe(other), factor, second));
      factor = second;
    }
    ops.push_back(as_second ? Matmul(factor, s, Describe(y))
                            : Matmul(s, factor, Describe(y)));
    Enqueue(ops, {x, ones, other, y});
    return y.at({});
  };
  for (const bool as_second : {false, true}) {
    EXPECT_EQ(multiply(kBfloat, 257, as_second, false), 256);
    EXPECT_EQ(multiply(kHalf, 257, as_second, false), 257);
    EXPECT_EQ(multiply(kHalf, 2049, as_second, false), 2048);
    EXPECT_EQ(multiply(kHalf, 2049, as_second, true), 2049);
  }
}

TEST_F(CudnnComputationTest, BroadcastsTheSecondOperandInAnyDimension) {
  const Descriptor between = Virtual(kZ, kDims);
  for (const auto mode :
       {CUDNN_POINTWISE_ADD, CUDNN_POINTWISE_SUB, CUDNN_POINTWISE_MUL}) {
    for (unsigned mask = 0; mask < 16; ++mask) {
      const DeviceTensor second(kC, Masked(kDims, mask), kFloat);
      const DeviceTensor y(kOut, kDims, kFloat);
      second.Fill(3);
      Enqueue({Product(between),
               Pointwise(mode, between, Describe(second), Describe(y))},
              {a_, b_, second, y});
      ForEachIndex(kDims, [&](const Dims& i) {
        const double c = second.at(Broadcast(i, second.dims));
        ASSERT_EQ(y.at(i), mode == CUDNN_POINTWISE_ADD   ? z(i) + c
                           : mode == CUDNN_POINTWISE_SUB ? z(i) - c
                                                         : z(i) * c)
            << mode << " " << mask;
      });
    }
  }
}

TEST_F(CudnnComputationTest, Exponentiates) {
  const Descriptor between = Virtual(kZ, kDims);
  const DeviceTensor y(kOut, kDims, kFloat);
  Enqueue({Product(between),
           Pointwise(CUDNN_POINTWISE_EXP, between, nullptr, Describe(y))},
          {a_, b_, y});
  ForEachIndex(kDims, [&](const Dims& i) {
    const double want = std::exp(z(i));
    // One rounding to float32; exp in float64 is good to far less.
    EXPECT_TRUE(std::abs(y.at(i) - want) <= 1.01 * 0x1p-24 * want) << z(i);
  });
}

TEST_F(CudnnComputationTest, SumsOverAnyDimensions) {
  const Descriptor between = Virtual(kZ, kDims);
  for (unsigned mask = 0; mask < 16; ++mask) {
    const DeviceTensor y(kOut, Masked(kDims, mask), kFloat);
    Enqueue({Product(between), Reduction(between, Describe(y))}, {a_, b_, y});
    std::vector<double> want(
        static_cast<size_t>(y.dims[0] * y.dims[1] * y.dims[2] * y.dims[3]));
    const auto at = [&](const Dims& i) -> double& {
      return want[static_cast<size_t>(
          ((i[0] * y.dims[1] + i[1]) * y.dims[2] + i[2]) * y.dims[3] + i[3])];
    };
    ForEachIndex(kDims,
                 [&](const Dims& i) { at(Broadcast(i, y.dims)) += z(i); });
    ForEachIndex(y.dims,
                 [&](const Dims& i) { ASSERT_EQ(y.at(i), at(i)) << mask; });
  }
}

TEST_F(CudnnComputationTest, ReshapesMemory) {
  const Descriptor between = Virtual(kZ, kDims);
  const Dims flipped = {2, 3, 7, 5}, strides = {105, 35, 1, 7};
  const DeviceTensor y(kOut, flipped, kFloat, strides);
  const Descriptor transposed =
      Finalized(UnfinishedTensor(6, flipped, strides, kFloat, true));
  const DeviceTensor ones(kC, {2, 3, 5, 1}, kHalf),
      sums(7, {2, 3, 7, 1}, kFloat);
  ForEachIndex(ones.dims, [&](const Dims& i) { ones.Set(i, 1); });
  Enqueue({Product(between), Reshape(between, transposed),
           Matmul(transposed, Describe(ones), Describe(sums)),
           Reshape(between, Describe(y))},
          {a_, b_, ones, sums, y});
  ForEachIndex(flipped, [&](const Dims& i) {
    ASSERT_EQ(y.at(i), z({i[0], i[1], i[3], i[2]}));
  });
  ForEachIndex(sums.dims, [&](const Dims& i) {
    double want = 0;
    for (int64_t k = 0; k < 5; ++k) want += z({i[0], i[1], k, i[2]});
    ASSERT_EQ(sums.at(i), want);
  });
  // Other dimensions of the same memory, in another type: 257 is rounded.
  const DeviceTensor flat(kC, {1, 1, 6, 35}, kBfloat);
  a_.Set({0, 0, 0, 0}, 255);
  b_.Set({0, 0, 0, 0}, 1);
  b_.Set({0, 0, 1, 0}, 2);
  a_.Set({0, 0, 0, 1}, 1);
  for (const int64_t k : {2, 3}) a_.Set({0, 0, 0, k}, 0);
  ASSERT_EQ(z({}), 257);
  Enqueue({Product(between), Reshape(between, Describe(flat))}, {a_, b_, flat});
  EXPECT_EQ(flat.at({}), 256);
  EXPECT_EQ(flat.at({0, 0, 5, 34}), z({1, 2, 4, 6}));
}

// The result between two operations may be in memory too.
TEST_F(CudnnComputationTest, RoundsResultsBetweenOperations) {
  const DeviceTensor x(kA, kOne, kHalf), w(kB, kOne, kHalf);
  const DeviceTensor stored(kC, kOne, kBfloat), y(kOut, kOne, kFloat);
  x.Set({}, 257);
  w.Set({}, 1);
  float one = 1;
  for (const bool is_virtual : {true, false}) {
    const Descriptor middle =
        is_virtual ? Virtual(kC, kOne, kBfloat) : Describe(stored);
    y.Set({}, 0);
    Enqueue({Matmul(Describe(x), Describe(w), middle),
             Pointwise(CUDNN_POINTWISE_MUL, middle, Scalar(kZ), Describe(y))},
            {x, w, stored, y, {kZ, &one}});
    EXPECT_EQ(y.at({}), 256);
    EXPECT_EQ(std::isnan(stored.at({})), is_virtual);
  }
  EXPECT_EQ(stored.at({}), 256);
}

TEST_F(CudnnComputationTest, ReadsScalarsWhenItIsCalled) {
  const Descriptor between = Virtual(kZ, kDims);
  const DeviceTensor y(kOut, kDims, kFloat);
  float factor = 2;
  SetSchedule({.order = Order::kOldestStreamFirst});
  Enqueue({Product(between),
           Pointwise(CUDNN_POINTWISE_MUL, between, Scalar(kC), Describe(y))},
          {a_, b_, y, {kC, &factor}});
  ASSERT_TRUE(std::isnan(y.at({})));  // Held back.
  factor = 3;
  Ok(cudaStreamSynchronize(newer_));
  ForEachIndex(kDims, [&](const Dims& i) { ASSERT_EQ(y.at(i), 2 * z(i)); });
}

TEST_F(CudnnComputationTest, TakesScalarsFromTheHost) {
  IsBad(cudnnBackendFinalize([&] {
          const Descriptor t = UnfinishedScalar(kC);
          Set(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
          return t;
        }()),
        "is virtual and passed by value");
  Fails(cudnnBackendFinalize(UnfinishedScalar(kC, {1, 1, 1, 2})),
        CUDNN_STATUS_NOT_SUPPORTED, "2 elements, not 1");
  const DeviceTensor x(kA, kOne, kHalf), w(kB, kOne, kHalf);
  const DeviceTensor y(kOut, kOne, kFloat);
  IsBad(cudnnBackendFinalize(
            UnfinishedGraph({Matmul(Describe(x), Describe(w), Scalar(kOut))})),
        "writes tensor 5, which is passed by value");

  // A host pointer needs no alignment.
  const Descriptor scalar = UnfinishedScalar(kC);
  Set(scalar, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64,
      int64_t{1} << 40);
  const Descriptor between = Virtual(kZ, kOne);
  const Descriptor plan = Plan({Matmul(Describe(x), Describe(w), between),
                                Pointwise(CUDNN_POINTWISE_MUL, between,
                                          Finalized(scalar), Describe(y))});
  float factor = 3;
  const auto execute = [&](void* value) {
    return cudnnBackendExecute(
        handle_, plan,
        Finalized(Pack({kA, kB, kOut, kC},
                       {x.data(), w.data(), y.data(), value}, room_.data())));
  };
  x.Set({}, 5);
  w.Set({}, 7);
  Ok(execute(&factor));
  EXPECT_EQ(y.at({}), 105);
  IsBad(execute(y.data()), "tensor 3 does not lie in host memory");
  IsBad(execute(nullptr), "tensor 3 does not lie in host memory");
}

TEST_F(CudnnComputationTest, RefusesDimensionsThatDoNotMatch) {
  const auto tensor = [&](const Dims& dims) { return Tensor(kX, dims); };
  const auto multiply = [&](const Dims& a, const Dims& b, const Dims& c) {
    return cudnnBackendFinalize(
        UnfinishedMatmul(tensor(a), tensor(b), tensor(c)));
  };
  Ok(multiply({2, 3, 4, 5}, {2, 3, 5, 6}, {2, 3, 4, 6}));
  IsBad(multiply({2, 3, 4, 5}, {2, 3, 4, 6}, {2, 3, 4, 6}),
        "the factors do not match: x [2,3,4,5], w [2,3,4,6], y [2,3,4,6]");
  IsBad(multiply({2, 3, 4, 5}, {1, 3, 5, 6}, {2, 3, 4, 6}), "the factors");
  IsBad(multiply({2, 3, 4, 5}, {2, 1, 5, 6}, {2, 3, 4, 6}), "the factors");
  IsBad(multiply({2, 3, 4, 5}, {2, 3, 5, 6}, {2, 3, 6, 4}), "y is not");
  IsBad(multiply({2, 3, 4, 5}, {2, 3, 5, 6}, {2, 3, 1, 6}), "y is not");
  const auto reduce = [&](const Dims& x, const Dims& y) {
    return cudnnBackendFinalize(UnfinishedReduction(tensor(x), tensor(y)));
  };
  IsBad(reduce({2, 3, 4, 5}, {2, 3, 2, 1}), "neither 1 nor those of x");
  IsBad(reduce({2, 3, 1, 5}, {2, 3, 4, 5}), "neither 1 nor those of x");
  const auto reshape = [&](const Dims& x, const Dims& y, const Dims& strides) {
    return cudnnBackendFinalize(UnfinishedReshape(
        tensor(x), Finalized(UnfinishedTensor(kY, y, strides))));
  };
  Ok(reshape({1, 1, 2, 3}, {1, 1, 3, 2}, {6, 6, 1, 3}));
  IsBad(reshape({1, 1, 2, 3}, {1, 1, 3, 2}, {6, 6, 1, 4}), "same places");
  IsBad(reshape({1, 1, 2, 3}, {1, 1, 2, 2}, {6, 6, 3, 1}), "same places");
  const auto subtract = [&](const Dims& x, const Dims& b) {
    return cudnnBackendFinalize(UnfinishedPointwise(
        CUDNN_POINTWISE_SUB, tensor(x), tensor(b), tensor(x)));
  };
  IsBad(subtract({2, 3, 4, 5}, {2, 3, 4, 2}), "cannot be broadcast");
  IsBad(subtract({2, 3, 4, 1}, {2, 3, 4, 5}), "cannot be broadcast");
  for (const auto& [mode, b] : {std::pair{CUDNN_POINTWISE_MUL, false},
                                std::pair{CUDNN_POINTWISE_EXP, true}}) {
    const Descriptor x = tensor(kOne);
    IsBad(
        cudnnBackendFinalize(UnfinishedPointwise(mode, x, b ? x : nullptr, x)),
        b ? " is set" : "is not set");
  }
}

TEST_F(CudnnComputationTest, RefusesOtherModes) {
  constexpr auto kOther = static_cast<cudnnPointwiseMode_t>(2);
  const Descriptor x = Tensor(kX, kOne);
  Fails(cudnnBackendFinalize(UnfinishedPointwise(kOther, x, x, x)),
        CUDNN_STATUS_NOT_SUPPORTED, "no pointwise mode 2");
  const Descriptor product = Make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  Set(product, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, kHalf);
  Fails(cudnnBackendFinalize(product), CUDNN_STATUS_NOT_SUPPORTED, "matmul");
  const auto reduction = [&](cudnnReduceTensorOp_t what, cudnnDataType_t type) {
    const Descriptor made = Make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    Set(made, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
        what);
    Set(made, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    return cudnnBackendFinalize(made);
  };
  Ok(reduction(CUDNN_REDUCE_TENSOR_ADD, kFloat));
  Fails(reduction(CUDNN_REDUCE_TENSOR_MAX, kFloat), CUDNN_STATUS_NOT_SUPPORTED,
        "reductions");
  Fails(reduction(CUDNN_REDUCE_TENSOR_ADD, kHalf), CUDNN_STATUS_NOT_SUPPORTED,
        "reductions");
}

TEST_F(CudnnComputationTest, RefusesToReadATensorBeforeItIsWritten) {
  const Descriptor x = Tensor(kX, kOne), y = Tensor(kY, kOne);
  const auto exp = [&](Descriptor from, Descriptor to) {
    return Pointwise(CUDNN_POINTWISE_EXP, from, nullptr, to);
  };
  IsBad(cudnnBackendFinalize(UnfinishedGraph({exp(x, y), exp(y, x)})),
        "tensor 1 is read before it is written");
  IsBad(cudnnBackendFinalize(UnfinishedGraph({exp(x, x)})),
        "tensor 1 is read before it is written");
}

TEST_F(CudnnComputationTest, HasAnEngineForProductsIn16Bits) {
  const auto tensor = [&](int64_t uid, cudnnDataType_t type) {
    return Tensor(uid, kOne, type);
  };
  const Descriptor y = tensor(kOut, kFloat), half = tensor(kB, kHalf);
  const Descriptor between = Virtual(kZ, kOne), next = Virtual(6, kOne);
  const Descriptor product = Matmul(tensor(kA, kHalf), half, between);
  EXPECT_EQ(CountProposals({Matmul(tensor(kA, kHalf), half, y)}), 1u);
  EXPECT_EQ(CountProposals({product, Matmul(between, half, y)}), 1u);
  EXPECT_EQ(CountProposals({product, Reduction(between, next),
                            Pointwise(CUDNN_POINTWISE_RELU_FWD, next, nullptr,
                                      tensor(kOut, kHalf))}),
            1u);
  EXPECT_EQ(CountProposals({Matmul(tensor(kA, kFloat), half, y)}), 0u);
  EXPECT_EQ(CountProposals({Matmul(half, tensor(kA, kFloat), y)}), 0u);
  EXPECT_EQ(CountProposals({Pointwise(CUDNN_POINTWISE_MUL, half, half, y)}),
            0u);
  EXPECT_EQ(CountProposals({Reduction(half, y)}), 0u);
  EXPECT_EQ(CountProposals({Reshape(half, y)}), 0u);
  // A convolution and another operation than a sum or ReLU.
  const auto convolve = [&](Descriptor to) {
    return Finalized(
        UnfinishedConvolution(kForwardNames, tensor(kA, kHalf), half, to));
  };
  EXPECT_EQ(CountProposals({convolve(y)}), 1u);
  EXPECT_EQ(CountProposals({convolve(between), Matmul(between, half, y)}), 0u);
  EXPECT_EQ(CountProposals({convolve(between), Pointwise(CUDNN_POINTWISE_EXP,
                                                         between, nullptr, y)}),
            0u);
}

TEST_F(CudnnComputationTest, NeedsAWorkspaceThatDependsOnTheShape) {
  const auto needed = [&](const Dims& dims) {
    return WorkspaceOf(
        Plan({Matmul(Tensor(kA, {dims[0], dims[1], dims[2], 1}, kHalf),
                     Tensor(kB, {dims[0], dims[1], 1, dims[3]}, kHalf),
                     Tensor(kOut, dims))}));
  };
  EXPECT_GT(needed(kOne), 0);
  for (size_t axis = 0; axis < 4; ++axis) {
    Dims larger = kOne;
    larger[axis] = 2;
    EXPECT_GT(needed(larger), needed(kOne));
  }
}

}  // namespace
}  // namespace lockstep::standin::cudnn
