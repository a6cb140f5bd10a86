#include "models/cuda/fused_attention.h"

#include <cudnn.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cuda/cudnn_plan.h"
#include "models/program/step_memory.h"

namespace lockstep {
namespace {

using Dims = CudnnTensor::Sizes;  // n, heads, rows, columns
using Operand = cudnnBackendDescriptor_t;
using Place = CudnnTensor::Place;

// The tensors' numbers in cuDNN's variant pack.
enum Uid : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kY,
  kStatistics,
  kScale,
  kOne,
  kDy,
  kDQuery,
  kDKey,
  kDValue,
  kSums,
  kFirstVirtual,
};

constexpr cudnnDataType_t kFloat = CUDNN_DATA_FLOAT;

// Swaps rows and columns of a tensor's dims or strides.
Dims Transposed(const Dims& sizes) {
  return {sizes[0], sizes[1], sizes[3], sizes[2]};
}

// Builds the graph of a pass. Its matrices are [n, heads, rows, columns].
class AttentionBuilder {
 public:
  explicit AttentionBuilder(const AttentionGraph& graph) : graph_(graph) {}

  absl::StatusOr<std::vector<CudnnDescriptor>> Forward() {
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand query, Part(kQuery));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand key, Part(kKey));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand value, Part(kValue));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand y, Joined(kY));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand statistics, Column(kStatistics));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand scale, Scalar(kScale));
    LOCKSTEP_RETURN_IF_ERROR(
        builder_.Add(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR,
                     {{CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, query},
                      {CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, key},
                      {CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, value},
                      {CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, y},
                      {CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, statistics},
                      {CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, scale}},
                     "attention"));
    return builder_.Finish();
  }

  // With p = softmax(s) from the statistics:
  //   sums = rows' sums of y dy,  dv = p' dy,  dp = dy v',
  //   ds = (dp - sums) p / sqrt(size),  dk = ds' q,  dq = ds k.
  // cuDNN recognises the graph as attention by this pattern: the product of
  // `sums` with 1 belongs to it, and so does that k and v are transposed.
  absl::StatusOr<std::vector<CudnnDescriptor>> Backward() {
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand query, Part(kQuery));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand key, TransposedPart(kKey));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand value, TransposedPart(kValue));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand dy, Joined(kDy));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand scale, Scalar(kScale));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand dquery, Part(kDQuery));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand dkey, Part(kDKey));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand dvalue, Part(kDValue));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand sums, Sums(dy));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand p,
                              Probabilities(query, key, scale));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand p_transposed, Transpose(p));
    LOCKSTEP_RETURN_IF_ERROR(Multiply(p_transposed, dy, dvalue));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand dp, Scores());
    LOCKSTEP_RETURN_IF_ERROR(Multiply(dy, value, dp));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand centred,
                              Pointwise(CUDNN_POINTWISE_SUB, dp, sums));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand weighted,
                              Pointwise(CUDNN_POINTWISE_MUL, centred, p));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand ds,
                              Pointwise(CUDNN_POINTWISE_MUL, weighted, scale));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand ds_transposed, Transpose(ds));
    LOCKSTEP_RETURN_IF_ERROR(Multiply(ds_transposed, query, dkey));
    CudnnTensor key_again = PartTensor(kKey);
    key_again.uid = next_++;
    key_again.type = DataType::kFloat32;
    key_again.place = Place::kVirtual;
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand keys, builder_.Tensor(key_again));
    LOCKSTEP_RETURN_IF_ERROR(Reshape(key, keys));
    LOCKSTEP_RETURN_IF_ERROR(Multiply(ds, keys, dquery));
    return builder_.Finish();
  }

 private:
  using Made = absl::StatusOr<Operand>;

  // Query, key, value or a gradient of one: a part of [n, length, 3, heads,
  // size].
  CudnnTensor PartTensor(int64_t uid) const {
    const AttentionGraph& g = graph_;
    const int64_t row = 3 * g.heads * g.size;
    return {.uid = uid,
            .type = g.type,
            .dims = {g.n, g.heads, g.length, g.size},
            .strides = {g.length * row, g.size, row, 1}};
  }
  Made Part(Uid uid) { return builder_.Tensor(PartTensor(uid)); }
  Made TransposedPart(Uid uid) {
    CudnnTensor tensor = PartTensor(uid);
    tensor.dims = Transposed(tensor.dims);
    tensor.strides = Transposed(tensor.strides);
    return builder_.Tensor(tensor);
  }
  // y or dy: [n, length, heads, size].
  Made Joined(Uid uid) {
    CudnnTensor tensor = PartTensor(uid);
    tensor.strides[0] /= 3;
    tensor.strides[2] /= 3;
    return builder_.Tensor(tensor);
  }
  // A number for each row of a head.
  Made Column(int64_t uid, Place place = Place::kDevice) {
    const Dims dims = {graph_.n, graph_.heads, graph_.length, 1};
    return builder_.Tensor({.uid = uid,
                            .dims = dims,
                            .strides = PackedStrides(dims),
                            .place = place});
  }
  Made Scalar(Uid uid) {
    return builder_.Tensor({.uid = uid,
                            .dims = {1, 1, 1, 1},
                            .strides = {1, 1, 1, 1},
                            .place = Place::kScalar});
  }
  CudnnTensor ScoreTensor() {
    const Dims dims = {graph_.n, graph_.heads, graph_.length, graph_.length};
    return {.uid = next_++,
            .dims = dims,
            .strides = PackedStrides(dims),
            .place = Place::kVirtual};
  }
  Made Scores() { return builder_.Tensor(ScoreTensor()); }

  // Adds an operation whose result is like scores.
  Made Pointwise(cudnnPointwiseMode_t mode, Operand x, Operand b) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand y, Scores());
    LOCKSTEP_RETURN_IF_ERROR(builder_.Pointwise(mode, x, b, y));
    return y;
  }

  absl::Status Multiply(Operand a, Operand b, Operand c) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Operand how, builder_.Describe(CUDNN_BACKEND_MATMUL_DESCRIPTOR,
                                             {{CUDNN_ATTR_MATMUL_COMP_TYPE,
                                               CUDNN_TYPE_DATA_TYPE, kFloat}},
                                             "a product"));
    return builder_.Add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                        {{CUDNN_ATTR_OPERATION_MATMUL_DESC, how},
                         {CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
                         {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
                         {CUDNN_ATTR_OPERATION_MATMUL_CDESC, c}},
                        "a product");
  }

  absl::Status Reshape(Operand x, Operand y) {
    return builder_.Add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                        {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x},
                         {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y}},
                        "a transpose");
  }

  // Returns scores transposed and rounded to the graph's type.
  Made Transpose(Operand x) {
    CudnnTensor tensor = ScoreTensor();
    tensor.type = graph_.type;
    tensor.dims = Transposed(tensor.dims);
    tensor.strides = Transposed(tensor.strides);
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand y, builder_.Tensor(tensor));
    LOCKSTEP_RETURN_IF_ERROR(Reshape(x, y));
    return y;
  }

  // Returns the sums of y * dy, which are in memory.
  Made Sums(Operand dy) {
    constexpr cudnnReduceTensorOp_t kAdd = CUDNN_REDUCE_TENSOR_ADD;
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand y, Joined(kY));
    const Dims dims = {graph_.n, graph_.heads, graph_.length, graph_.size};
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand products,
                              builder_.Tensor({.uid = next_++,
                                               .dims = dims,
                                               .strides = PackedStrides(dims),
                                               .place = Place::kVirtual}));
    LOCKSTEP_RETURN_IF_ERROR(
        builder_.Pointwise(CUDNN_POINTWISE_MUL, dy, y, products));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Operand how,
        builder_.Describe(
            CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
            {{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
              kAdd},
             {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, kFloat}},
            "a sum"));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand plain,
                              Column(next_++, Place::kVirtual));
    LOCKSTEP_RETURN_IF_ERROR(
        builder_.Add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                     {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, how},
                      {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, products},
                      {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, plain}},
                     "a sum"));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand one, Scalar(kOne));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand sums, Column(kSums));
    LOCKSTEP_RETURN_IF_ERROR(
        builder_.Pointwise(CUDNN_POINTWISE_MUL, plain, one, sums));
    return sums;
  }

  // Returns exp(scale * query key - statistics).
  Made Probabilities(Operand query, Operand key, Operand scale) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand statistics, Column(kStatistics));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand products, Scores());
    LOCKSTEP_RETURN_IF_ERROR(Multiply(query, key, products));
    LOCKSTEP_ASSIGN_OR_RETURN(const Operand scores,
                              Pointwise(CUDNN_POINTWISE_MUL, products, scale));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Operand shifted,
        Pointwise(CUDNN_POINTWISE_SUB, scores, statistics));
    return Pointwise(CUDNN_POINTWISE_EXP, shifted, nullptr);
  }

  const AttentionGraph& graph_;
  CudnnGraphBuilder builder_;
  int64_t next_ = kFirstVirtual;
};

// NVIDIA's cudnn-frontend gives cuDNN up to 9.15.0 masks for lengths that are
// not multiples of 128. This graph has no masks.
constexpr size_t kOldestCudnn = 91600;

// Returns the bytes of the gradients of scores, which engines keep in tiles of
// 64 rows and columns.
int64_t KeptBytes(const AttentionGraph& graph) {
  constexpr int64_t kTile = 64;
  if (graph.pass == AttentionPass::kForward) return 0;
  const int64_t length = (graph.length + kTile - 1) / kTile * kTile;
  return graph.n * graph.heads * length * length * SizeOf(graph.type);
}

absl::StatusOr<CudnnPlan> PlanOf(const CudnnDevice& device,
                                 const AttentionGraph& graph) {
  const char* const wrong =
      cudnnGetVersion() < kOldestCudnn ? "cuDNN is older than 9.16"
      : SizeOf(graph.type) != 2        ? "the type does not have 16 bits"
      : graph.size % 8 != 0 || graph.size < 8 || graph.size > 128
          ? "a head's size is not a multiple of 8 from 8 to 128"
      : graph.n < 1 || graph.heads < 1 ? "a tensor is empty"
      : graph.length < 2               ? "the length is below 2"
                                       : nullptr;
  if (wrong != nullptr) return absl::UnimplementedError(wrong);
  AttentionBuilder builder(graph);
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<CudnnDescriptor> parts,
                            graph.pass == AttentionPass::kForward
                                ? builder.Forward()
                                : builder.Backward());
  LOCKSTEP_ASSIGN_OR_RETURN(
      CudnnPlan plan,
      CudnnPlan::Create(device, std::move(parts), /*may_round=*/true));
  // cuDNN does not say that an engine adds gradients of q in the order in which
  // its blocks end. Such an engine does not keep gradients of scores.
  if (plan.workspace_bytes() < KeptBytes(graph)) {
    return absl::UnimplementedError(
        absl::StrCat(plan.engine(),
                     " does not keep the gradients of scores: its workspace "
                     "has ",
                     plan.workspace_bytes(), " bytes"));
  }
  return plan;
}

}  // namespace

std::string Describe(const AttentionGraph& g) {
  return absl::StrCat(
      g.name, ": attention ",
      g.pass == AttentionPass::kForward ? "forward" : "backward", " ",
      Name(g.type), " [", g.n, ",", g.length, "] ", g.heads, "x", g.size);
}

absl::StatusOr<FusedAttentionPlan> FusedAttentionPlan::Create(
    const CudnnDevice& device, const AttentionGraph& graph) {
  absl::StatusOr<CudnnPlan> plan = PlanOf(device, graph);
  if (!plan.ok()) return NameGraph(graph, plan.status());
  return FusedAttentionPlan(graph, *std::move(plan));
}

int64_t FusedAttentionPlan::SumBytes() const {
  if (graph_.pass == AttentionPass::kForward) return 0;
  return graph_.n * graph_.heads * graph_.length * SizeOf(DataType::kFloat32);
}

int64_t FusedAttentionPlan::workspace_bytes() const {
  return AlignedBytes(plan_.workspace_bytes()) + SumBytes();
}

absl::Status FusedAttentionPlan::Execute(cudnnHandle_t handle,
                                         const AttentionOperands& operands,
                                         void* workspace) const {
  float scale =
      static_cast<float>(1 / std::sqrt(static_cast<double>(graph_.size)));
  float one = 1;
  const int64_t part = graph_.heads * graph_.size * SizeOf(graph_.type);
  void* const qkv = const_cast<void*>(operands.qkv);
  void* const dy = const_cast<void*>(operands.dy);
  if (graph_.pass == AttentionPass::kForward) {
    constexpr std::array<int64_t, 6> kUids = {kQuery, kKey,        kValue,
                                              kY,     kStatistics, kScale};
    const std::array<void*, 6> pointers = {
        qkv,        Offset(qkv, part),   Offset(qkv, 2 * part),
        operands.y, operands.statistics, &scale};
    return NameGraph(graph_, plan_.Execute(handle, kUids, pointers, workspace));
  }
  constexpr std::array<int64_t, 12> kUids = {
      kQuery, kKey, kValue,  kY,    kStatistics, kScale,
      kOne,   kDy,  kDQuery, kDKey, kDValue,     kSums};
  const std::array<void*, 12> pointers = {
      qkv,
      Offset(qkv, part),
      Offset(qkv, 2 * part),
      operands.y,
      operands.statistics,
      &scale,
      &one,
      dy,
      operands.dqkv,
      Offset(operands.dqkv, part),
      Offset(operands.dqkv, 2 * part),
      Offset(workspace, AlignedBytes(plan_.workspace_bytes()))};
  return NameGraph(graph_, plan_.Execute(handle, kUids, pointers, workspace));
}

FusedAttentionPlans::PlanOrError FusedAttentionPlans::Get(
    const CudnnDevice& device, const AttentionGraph& graph) {
  AttentionGraph unnamed = graph;
  unnamed.name.clear();
  const auto [found, is_new] = plans_.try_emplace(Describe(unnamed));
  if (is_new) {
    absl::StatusOr<FusedAttentionPlan> made =
        FusedAttentionPlan::Create(device, graph);
    if (made.ok()) {
      found->second =
          std::make_shared<const FusedAttentionPlan>(*std::move(made));
    } else {
      found->second = made.status();
    }
  }
  return found->second;
}

}  // namespace lockstep
