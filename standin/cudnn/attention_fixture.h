// A fixture for tests of the stand-in's operations on matrices: tensors in
// device memory with any strides, and makers of operations.
#ifndef LOCKSTEP_STANDIN_CUDNN_ATTENTION_FIXTURE_H_
#define LOCKSTEP_STANDIN_CUDNN_ATTENTION_FIXTURE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "gtest/gtest.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/graph_fixture.h"
#include "standin/cudnn/operations.h"
#include "standin/elements.h"

namespace lockstep::standin::cudnn {

inline constexpr cudnnDataType_t kFloat = CUDNN_DATA_FLOAT;
inline constexpr cudnnDataType_t kHalf = CUDNN_DATA_HALF;
inline constexpr cudnnDataType_t kBfloat = CUDNN_DATA_BFLOAT16;

// Calls visit(index) for each index of a tensor with these dimensions.
template <typename Visit>
void ForEachIndex(const Dims& dims, const Visit& visit) {
  Dims i = {};
  for (i[0] = 0; i[0] < dims[0]; ++i[0]) {
    for (i[1] = 0; i[1] < dims[1]; ++i[1]) {
      for (i[2] = 0; i[2] < dims[2]; ++i[2]) {
        for (i[3] = 0; i[3] < dims[3]; ++i[3]) visit(i);
      }
    }
  }
}

// Returns the strides of [batch, head, row, column] in memory in the order
// [batch, row, head, column].
inline Dims Interleaved(const Dims& dims) {
  return {dims[1] * dims[2] * dims[3], dims[3], dims[1] * dims[3], 1};
}

// A tensor in device memory. Holds NaN until it is filled.
class DeviceTensor {
 public:
  DeviceTensor(int64_t uid, const Dims& dims, cudnnDataType_t type,
               const Dims& strides)
      : uid(uid),
        dims(dims),
        strides(strides),
        type(type),
        memory_(static_cast<size_t>(
            GraphTensor{.type = type, .dims = dims, .strides = strides}
                .bytes())) {}
  DeviceTensor(int64_t uid, const Dims& dims, cudnnDataType_t type)
      : DeviceTensor(uid, dims, type, Packed(dims)) {}

  void* data() const { return memory_.data(); }
  // Reads an element, without waiting for any stream.
  double at(const Dims& index) const {
    return ReadElement(TypeOf(type), data(), Offset(index));
  }
  void Set(const Dims& index, double value) const {
    WriteElement(TypeOf(type), value, data(), Offset(index));
  }
  // Fills the tensor with multiples of `step` from -3 to 3.
  void Fill(int seed, double step = 1) const {
    ForEachIndex(dims, [&](const Dims& index) {
      seed = (seed * 31 + 7) % 101;
      Set(index, step * (seed % 7 - 3));
    });
  }

  const int64_t uid;
  const Dims dims, strides;
  const cudnnDataType_t type;

 private:
  int64_t Offset(const Dims& index) const {
    int64_t offset = 0;
    for (size_t i = 0; i < 4; ++i) offset += index[i] * strides[i];
    return offset;
  }

  Memory memory_;
};

class AttentionGraphFixture : public CudnnGraphFixture {
 protected:
  Descriptor Describe(const DeviceTensor& t) {
    return Finalized(UnfinishedTensor(t.uid, t.dims, t.strides, t.type));
  }
  // Describes the tensor's memory with rows and columns exchanged. A graph
  // needs another number for each description.
  Descriptor DescribeTransposed(int64_t uid, const DeviceTensor& t) {
    return Finalized(UnfinishedTensor(
        uid, {t.dims[0], t.dims[1], t.dims[3], t.dims[2]},
        {t.strides[0], t.strides[1], t.strides[3], t.strides[2]}, t.type));
  }
  Descriptor Virtual(int64_t uid, const Dims& dims,
                     cudnnDataType_t type = kFloat) {
    return Tensor(uid, dims, type, true);
  }
  Descriptor UnfinishedScalar(int64_t uid, const Dims& dims = {1, 1, 1, 1}) {
    const Descriptor t = UnfinishedTensor(uid, dims, Packed(dims));
    Set(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
    return t;
  }
  Descriptor Scalar(int64_t uid) { return Finalized(UnfinishedScalar(uid)); }

  Descriptor UnfinishedMatmul(Descriptor a, Descriptor b, Descriptor c) {
    const Descriptor how = Make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    Set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, kFloat);
    const Descriptor op = Make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    Refer(op, CUDNN_ATTR_OPERATION_MATMUL_DESC, Finalized(how));
    Refer(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    Refer(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    Refer(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    return op;
  }
  Descriptor Matmul(Descriptor a, Descriptor b, Descriptor c) {
    return Finalized(UnfinishedMatmul(a, b, c));
  }
  Descriptor UnfinishedReduction(Descriptor x, Descriptor y) {
    const Descriptor how = Make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    Set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
        CUDNN_REDUCE_TENSOR_ADD);
    Set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, kFloat);
    const Descriptor op = Make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    Refer(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, Finalized(how));
    Refer(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    Refer(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    return op;
  }
  Descriptor Reduction(Descriptor x, Descriptor y) {
    return Finalized(UnfinishedReduction(x, y));
  }
  Descriptor UnfinishedReshape(Descriptor x, Descriptor y) {
    const Descriptor op = Make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    Refer(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    Refer(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    return op;
  }
  Descriptor Reshape(Descriptor x, Descriptor y) {
    return Finalized(UnfinishedReshape(x, y));
  }
  // `stats` may be null.
  Descriptor UnfinishedAttention(Descriptor q, Descriptor k, Descriptor v,
                                 Descriptor o, Descriptor stats,
                                 Descriptor scale) {
    const Descriptor op = Make(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
    Refer(op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, q);
    Refer(op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, k);
    Refer(op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, v);
    Refer(op, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, o);
    if (stats != nullptr) {
      Refer(op, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, stats);
    }
    Refer(op, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, scale);
    return op;
  }

  size_t CountProposals(const std::vector<Descriptor>& ops) {
    return Propose(Finalized(UnfinishedGraph(ops)), CUDNN_HEUR_MODE_A).size();
  }

  // The memory of one tensor of a variant pack.
  struct Operand {
    Operand(const DeviceTensor& t) : uid(t.uid), data(t.data()) {}
    Operand(int64_t uid, void* data) : uid(uid), data(data) {}
    int64_t uid;
    void* data;
  };
  // Enqueues the operations on these tensors, with the workspace that they
  // need.
  void Enqueue(const std::vector<Descriptor>& ops,
               std::initializer_list<Operand> operands) {
    const Descriptor plan = Plan(ops);
    std::vector<int64_t> uids;
    std::vector<void*> pointers;
    for (const auto& [uid, data] : operands) {
      uids.push_back(uid);
      pointers.push_back(data);
    }
    ASSERT_LE(WorkspaceOf(plan), int64_t{kWorkspaceBytes});
    Ok(cudnnBackendExecute(handle_, plan,
                           Finalized(Pack(uids, pointers, room_.data()))));
  }

  static constexpr size_t kWorkspaceBytes = size_t{1} << 16;
  Memory room_{kWorkspaceBytes};
};

}  // namespace lockstep::standin::cudnn

#endif  // LOCKSTEP_STANDIN_CUDNN_ATTENTION_FIXTURE_H_
