// Tests what descriptors and plans of cuDNN's stand-in refuse.
#include "standin/cudnn/descriptor.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/graph_fixture.h"

namespace lockstep::standin::cudnn {
namespace {

using testing::Each;

using CudnnDescriptorTest = CudnnGraphFixture;

TEST_F(CudnnDescriptorTest, RefusesWrongUseOfDescriptors) {
  const Descriptor empty = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  int64_t value = 0, count = 0;
  const auto set = [&](Descriptor to, Name name, Type type, int64_t values) {
    return cudnnBackendSetAttribute(to, name, type, values, &value);
  };
  constexpr auto kUid = CUDNN_ATTR_TENSOR_UNIQUE_ID;
  IsBad(cudnnBackendFinalize(empty), "attribute 901 of descriptor type 17");
  IsBad(cudnnBackendFinalize(nullptr), "null");
  IsBad(set(empty, kUid, CUDNN_TYPE_FLOAT, 1), "values of type 3, not 4");
  IsBad(set(empty, kUid, CUDNN_TYPE_INT64, 2), "cannot have 2 values");
  IsBad(set(empty, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1),
        "no attribute 0 of descriptor type 17");
  IsBad(set(Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR),
            CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1),
        "cannot be set");
  Fails(cudnnBackendGetAttribute(empty, kUid, CUDNN_TYPE_INT64, 1, &count,
                                 &value),
        CUDNN_STATUS_NOT_INITIALIZED, "is not finalized");
  const Descriptor done = Tensor(kX, {1, 1, 2, 3});
  IsBad(cudnnBackendFinalize(done), "finalized twice");
  IsBad(set(done, kUid, CUDNN_TYPE_INT64, 1), "the descriptor is finalized");
  for (const char* const json : {"", "[]"}) {
    const Descriptor card = Make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    Ok(cudnnBackendSetAttribute(card, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                CUDNN_TYPE_CHAR,
                                static_cast<int64_t>(std::strlen(json)), json));
    IsBad(cudnnBackendFinalize(card), "JSON");
  }
}

TEST_F(CudnnDescriptorTest, RefusesTensorsAndOperationsThatMakeNoSense) {
  const Dims dims = {1, 2, 2, 3};
  const auto tensor = [&](const Dims& dims, const Dims& strides) {
    return cudnnBackendFinalize(UnfinishedTensor(kX, dims, strides));
  };
  IsBad(tensor({1, 0, 2, 3}, {6, 6, 3, 1}), "at least 1");
  IsBad(tensor(dims, {12, 6, 2, 1}), "overlap");
  const Descriptor few = UnfinishedTensor(kX, dims, Packed(dims));
  SetSizes(few, CUDNN_ATTR_TENSOR_STRIDES, Sizes{3, 1});
  IsBad(cudnnBackendFinalize(few), "4 dimensions, but 2 strides");

  const Descriptor x = Tensor(kX, dims), w = Tensor(kW, {4, 2, 1, 2});
  const Descriptor y = Tensor(kY, {1, 4, 2, 2});
  const auto convolve = [&](Descriptor x, Descriptor w, Descriptor y,
                            float alpha = 1) {
    return cudnnBackendFinalize(
        UnfinishedConvolution(kForwardNames, x, w, y, {}, alpha));
  };
  Ok(convolve(x, w, y));
  IsBad(convolve(x, w, Tensor(kY, {1, 4, 2, 3})), "height and width");
  IsBad(convolve(x, w, Tensor(kY, {2, 4, 2, 2})), "numbers of images");
  IsBad(convolve(x, w, Tensor(kY, {1, 3, 2, 2})), "channels");
  IsBad(convolve(x, Tensor(kW, {4, 3, 1, 2}), y), "channels");
  IsBad(convolve(UnfinishedTensor(kX, dims, Packed(dims)), w, y),
        "is not finalized");
  IsBad(convolve(x, Card(), y), "is a descriptor of type 38, not 17");
  Fails(convolve(x, w, y, 2), CUDNN_STATUS_NOT_SUPPORTED, "alpha");
  IsBad(cudnnBackendFinalize(
            UnfinishedPointwise(y, Tensor(kBias, {1, 3, 1, 1}), y)),
        "broadcast");
  IsBad(cudnnBackendFinalize(UnfinishedPointwise(y, nullptr, x)), "differ");
}

TEST_F(CudnnDescriptorTest, RefusesGraphsThatCannotRun) {
  const Dims dims = {1, 1, 2, 2};
  const Descriptor sum = Tensor(kSum, dims, CUDNN_DATA_FLOAT, true);
  const Descriptor y = Tensor(kY, dims);
  const auto relu = [&](Descriptor x, Descriptor y) {
    return Finalized(UnfinishedPointwise(x, nullptr, y));
  };
  const auto finalize = [&](const std::vector<Descriptor>& ops) {
    return cudnnBackendFinalize(UnfinishedGraph(ops));
  };
  IsBad(finalize({relu(sum, y)}), "no earlier operation writes");
  IsBad(finalize({relu(y, sum)}), "result is virtual");
  IsBad(finalize({relu(Tensor(kX, dims), sum), relu(Tensor(kX, dims), sum)}),
        "two operations write tensor 5");
  const Dims flat = {1, 1, 1, 4};
  IsBad(finalize({relu(Tensor(kX, dims), sum),
                  relu(Tensor(kX, flat), Tensor(kY, flat))}),
        "two tensors have the number 1");
}

TEST_F(CudnnDescriptorTest, HasOneEngineWhereCudnnHasOne) {
  const Descriptor small = Finalized(UnfinishedGraph({SmallConvolution()}));
  EXPECT_EQ(Propose(small, CUDNN_HEUR_MODE_A).size(), 1u);
  EXPECT_EQ(Propose(small, CUDNN_HEUR_MODE_FALLBACK).size(), 0u);
  // cuDNN 9.19 has no engine that writes float32 gradients of 16-bit inputs.
  const Descriptor wide =
      Finalized(UnfinishedGraph({Finalized(UnfinishedConvolution(
          kWeightGradientNames, Tensor(kX, {1, 1, 2, 3}, CUDNN_DATA_HALF),
          Tensor(kW, {1, 1, 1, 2}),
          Tensor(kY, {1, 1, 2, 2}, CUDNN_DATA_HALF)))}));
  EXPECT_EQ(Propose(wide, CUDNN_HEUR_MODE_A).size(), 0u);
}

TEST_F(CudnnDescriptorTest, RefusesMemoryThatDoesNotFit) {
  const Descriptor plan = Plan({SmallConvolution()});
  const Memory x({1, 2, 3, 4, 5, 6}), w({1, 10}), y(size_t{16});
  const auto needed = static_cast<size_t>(WorkspaceOf(plan));
  const Memory little(needed - 1);
  std::vector<float> on_host(4);
  const auto execute = [&](const std::vector<void*>& pointers,
                           const std::vector<int64_t>& uids, void* workspace) {
    return cudnnBackendExecute(handle_, plan,
                               Finalized(Pack(uids, pointers, workspace)));
  };
  const std::vector<int64_t> all = {kX, kW, kY};
  void* const room = workspace_.data();
  IsBad(execute({x.data(), w.data()}, {kX, kW}, room),
        "tensor 3 is not in the variant pack");
  IsBad(execute({x.data(), w.data(), on_host.data()}, all, room),
        "tensor 3 does not lie in 16 bytes of device memory");
  IsBad(execute({x.data(), w.data(), w.data()}, all, room), "tensor 3");
  IsBad(execute({x.data(), w.data(), nullptr}, all, room), "tensor 3");
  IsBad(execute({static_cast<char*>(room) + 2, w.data(), y.data()}, all, room),
        "tensor 1 is not aligned to 4 bytes");
  IsBad(execute({x.data(), w.data(), y.data()}, all, little.data()),
        "workspace");
  IsBad(execute({x.data(), w.data(), y.data()}, all, nullptr), "workspace");
  IsBad(cudnnBackendFinalize(Pack(all, {x.data(), w.data()}, room)),
        "3 numbers, but 2 pointers");
  IsBad(cudnnBackendFinalize(Pack({kX, kX}, {x.data(), w.data()}, room)),
        "twice");
  IsBad(cudnnBackendExecute(handle_, plan,
                            Pack(all, {x.data(), w.data(), y.data()}, room)),
        "the variant pack is not finalized");
  EXPECT_THAT(y.Read(), Each(testing::IsNan()));

  // The stream's error is not the memory's.
  Ok(cudaStreamDestroy(older_));
  Ok(cudnnSetStream(handle_, older_));
  Fails(execute({x.data(), w.data(), y.data()}, all, room),
        CUDNN_STATUS_EXECUTION_FAILED, "cudaErrorInvalidResourceHandle");
  Ok(cudaStreamCreateWithFlags(&older_, cudaStreamNonBlocking));
}

}  // namespace
}  // namespace lockstep::standin::cudnn
