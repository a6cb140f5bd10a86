// A fixture for tests of the stand-in's graph API: a handle, two streams,
// device memory, and makers of descriptors.
#ifndef LOCKSTEP_STANDIN_CUDNN_GRAPH_FIXTURE_H_
#define LOCKSTEP_STANDIN_CUDNN_GRAPH_FIXTURE_H_

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "standin/control.h"
#include "standin/cudnn/cudnn_graph.h"

namespace lockstep::standin::cudnn {

using Dims = std::array<int64_t, 4>;
using Sizes = std::array<int64_t, 2>;
using Name = cudnnBackendAttributeName_t;
using Type = cudnnBackendAttributeType_t;

inline constexpr int64_t kX = 1, kW = 2, kY = 3, kBias = 4, kSum = 5;

// Expects success.
inline void Ok(cudaError_t error, const char* file = __builtin_FILE(),
               int line = __builtin_LINE()) {
  if (error != cudaSuccess) {
    ADD_FAILURE_AT(file, line) << cudaGetErrorName(error);
  }
}
inline std::string LastError() {
  char text[256] = {};
  cudnnGetLastErrorString(text, sizeof(text));
  return text;
}
inline void Ok(cudnnStatus_t status, const char* file = __builtin_FILE(),
               int line = __builtin_LINE()) {
  if (status != CUDNN_STATUS_SUCCESS) {
    ADD_FAILURE_AT(file, line) << status << ": " << LastError();
  }
}
// Expects an error with a text that contains `what`.
inline void Fails(cudnnStatus_t status, cudnnStatus_t want, const char* what,
                  const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  const testing::ScopedTrace trace(file, line, what);
  EXPECT_EQ(status, want);
  EXPECT_THAT(LastError(), testing::HasSubstr(what));
}
inline void IsBad(cudnnStatus_t status, const char* what,
                  const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  Fails(status, CUDNN_STATUS_BAD_PARAM, what, file, line);
}

// Device memory. Holds NaN until it is written.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    Ok(cudaMalloc(&data_, bytes));
  }
  explicit Memory(const std::vector<float>& values)
      : Memory(values.size() * sizeof(float)) {
    Write(values);
  }
  ~Memory() { Ok(cudaFree(data_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  void Write(const std::vector<float>& values) {
    Ok(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice));
  }
  // Returns the contents, without waiting for any stream.
  std::vector<float> Read() const {
    std::vector<float> values(bytes_ / sizeof(float));
    std::memcpy(values.data(), data_, bytes_);
    return values;
  }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

struct Names {
  cudnnBackendDescriptorType_t type;
  Name how, x, w, y, alpha, beta;
};
inline constexpr Names kForwardNames = {
    CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
inline constexpr Names kInputGradientNames = {
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
inline constexpr Names kWeightGradientNames = {
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};

struct Geometry {
  Sizes strides = {1, 1}, dilations = {1, 1}, pre = {0, 0}, post = {0, 0};
};

inline Dims Packed(const Dims& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}

// A handle, two streams, and makers of descriptors. The small convolution has x
// [1,1,2,3], w [1,1,1,2] and y [1,1,2,2].
class CudnnGraphFixture : public testing::Test {
 protected:
  using Descriptor = cudnnBackendDescriptor_t;

  void SetUp() override {
    Ok(cudaStreamCreateWithFlags(&older_, cudaStreamNonBlocking));
    Ok(cudaStreamCreateWithFlags(&newer_, cudaStreamNonBlocking));
    Ok(cudnnCreate(&handle_));
    Ok(cudnnSetStream(handle_, newer_));
  }
  void TearDown() override {
    Ok(cudaDeviceSynchronize());
    for (const Descriptor each : made_) Ok(cudnnBackendDestroyDescriptor(each));
    Ok(cudnnDestroy(handle_));
    for (const cudaStream_t each : {older_, newer_}) {
      Ok(cudaStreamDestroy(each));
    }
    SetSchedule({});
  }

  Descriptor Make(cudnnBackendDescriptorType_t type) {
    Ok(cudnnBackendCreateDescriptor(type, &made_.emplace_back()));
    return made_.back();
  }
  template <typename T>
  void Set(Descriptor to, Name name, Type type, const T& value) {
    Ok(cudnnBackendSetAttribute(to, name, type, 1, &value));
  }
  template <size_t kSize>
  void SetSizes(Descriptor to, Name name,
                const std::array<int64_t, kSize>& values) {
    Ok(cudnnBackendSetAttribute(to, name, CUDNN_TYPE_INT64, kSize,
                                values.data()));
  }
  void Refer(Descriptor to, Name name, Descriptor value) {
    Set(to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value);
  }
  Descriptor Finalized(Descriptor made) {
    Ok(cudnnBackendFinalize(made));
    return made;
  }

  Descriptor UnfinishedTensor(int64_t uid, const Dims& dims,
                              const Dims& strides,
                              cudnnDataType_t type = CUDNN_DATA_FLOAT,
                              bool is_virtual = false) {
    const Descriptor t = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    Set(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    SetSizes(t, CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
    SetSizes(t, CUDNN_ATTR_TENSOR_STRIDES, strides);
    Set(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid);
    Set(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{4});
    Set(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
    return t;
  }
  Descriptor Tensor(int64_t uid, const Dims& dims,
                    cudnnDataType_t type = CUDNN_DATA_FLOAT,
                    bool is_virtual = false) {
    return Finalized(
        UnfinishedTensor(uid, dims, Packed(dims), type, is_virtual));
  }
  Descriptor UnfinishedConvolution(const Names& names, Descriptor x,
                                   Descriptor w, Descriptor y,
                                   const Geometry& geometry = {},
                                   float alpha = 1) {
    const Descriptor how = Make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    Set(how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
        CUDNN_DATA_FLOAT);
    Set(how, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
        CUDNN_CROSS_CORRELATION);
    Set(how, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t{2});
    SetSizes(how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, geometry.strides);
    SetSizes(how, CUDNN_ATTR_CONVOLUTION_DILATIONS, geometry.dilations);
    SetSizes(how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, geometry.pre);
    SetSizes(how, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, geometry.post);
    const Descriptor op = Make(names.type);
    Refer(op, names.how, Finalized(how));
    Refer(op, names.x, x);
    Refer(op, names.w, w);
    Refer(op, names.y, y);
    Set(op, names.alpha, CUDNN_TYPE_FLOAT, alpha);
    Set(op, names.beta, CUDNN_TYPE_FLOAT, 0.0f);
    return op;
  }
  Descriptor SmallConvolution() {
    return Finalized(UnfinishedConvolution(
        kForwardNames, Tensor(kX, {1, 1, 2, 3}), Tensor(kW, {1, 1, 1, 2}),
        Tensor(kY, {1, 1, 2, 2})));
  }
  // y = mode(x, b). `b` is null if the mode has one operand.
  Descriptor UnfinishedPointwise(cudnnPointwiseMode_t mode, Descriptor x,
                                 Descriptor b, Descriptor y) {
    const Descriptor how = Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    Set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    Set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
        CUDNN_DATA_FLOAT);
    const Descriptor op = Make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    Refer(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, Finalized(how));
    Refer(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr) Refer(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    Refer(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    return op;
  }
  Descriptor Pointwise(cudnnPointwiseMode_t mode, Descriptor x, Descriptor b,
                       Descriptor y) {
    return Finalized(UnfinishedPointwise(mode, x, b, y));
  }
  // y = x + b, or y = max(x, 0) if b is null.
  Descriptor UnfinishedPointwise(Descriptor x, Descriptor b, Descriptor y) {
    return UnfinishedPointwise(
        b == nullptr ? CUDNN_POINTWISE_RELU_FWD : CUDNN_POINTWISE_ADD, x, b, y);
  }

  Descriptor UnfinishedGraph(const std::vector<Descriptor>& ops) {
    const Descriptor graph = Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    Ok(cudnnBackendSetAttribute(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                                CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                static_cast<int64_t>(ops.size()), ops.data()));
    return graph;
  }
  Descriptor Card() {
    const Descriptor card = Make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    Set(card, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, handle_);
    return Finalized(card);
  }
  // Returns the configurations that the heuristics propose.
  std::vector<Descriptor> Propose(Descriptor graph,
                                  cudnnBackendHeurMode_t mode) {
    const Descriptor heuristics = Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    Refer(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    Set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    Refer(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, Card());
    Finalized(heuristics);
    std::vector<Descriptor> found = {Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
                                     Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)};
    int64_t count = -1;
    Ok(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 2, &count,
                                found.data()));
    found.resize(static_cast<size_t>(count));
    return found;
  }
  Descriptor Plan(const std::vector<Descriptor>& ops) {
    const auto found =
        Propose(Finalized(UnfinishedGraph(ops)), CUDNN_HEUR_MODE_A);
    EXPECT_EQ(found.size(), 1u);
    const Descriptor plan = Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    Refer(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, found.at(0));
    Refer(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, Card());
    return Finalized(plan);
  }
  int64_t WorkspaceOf(Descriptor plan) {
    int64_t bytes = 0, count = 0;
    Ok(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                CUDNN_TYPE_INT64, 1, &count, &bytes));
    return bytes;
  }
  Descriptor Pack(const std::vector<int64_t>& uids,
                  const std::vector<void*>& pointers, void* workspace) {
    const Descriptor pack = Make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    Ok(cudnnBackendSetAttribute(
        pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
        static_cast<int64_t>(uids.size()), uids.data()));
    Ok(cudnnBackendSetAttribute(
        pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
        static_cast<int64_t>(pointers.size()), pointers.data()));
    Set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
        workspace);
    return pack;
  }
  // Enqueues a plan on x, w and y, with all the workspace that it needs.
  void Execute(Descriptor plan, const Memory& x, const Memory& w,
               const Memory& y) {
    Ok(cudnnBackendExecute(
        handle_, plan,
        Finalized(Pack({kX, kW, kY}, {x.data(), w.data(), y.data()},
                       workspace_.data()))));
  }

  cudaStream_t older_ = nullptr;
  cudaStream_t newer_ = nullptr;
  cudnnHandle_t handle_ = nullptr;
  Memory workspace_{size_t{1} << 12};
  std::vector<Descriptor> made_;
};

}  // namespace lockstep::standin::cudnn

#endif  // LOCKSTEP_STANDIN_CUDNN_GRAPH_FIXTURE_H_
