#include "models/cuda/attention_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cuda/convolution.h"
#include "models/cuda/dropout.h"
#include "models/cuda/fused_attention.h"
#include "models/cuda/plan.h"
#include "models/cuda/product.h"
#include "models/cuda/sequence.h"
#include "models/cuda/softmax.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/step_memory.h"

namespace lockstep {
namespace {

// Attention as products of matrices and softmaxes between them.
//
// For each head, with q, k and v [length, size], s = q k' / sqrt(size), p =
// softmax(s) and y = p v:
//   dv = p' dy,  dp = dy v',  ds = p (dp - sum(dp p)),
//   dq = ds k / sqrt(size),  dk = ds' q / sqrt(size).
// `saved` holds q, k and v by heads, then p. Scratch holds the workspace of the
// products, y or dy by heads, then in the backward pass dq, dk and dv by heads,
// dp, and p after dropout.
//
// s and dp are float32 always: 16 bits would round a large score by more than
// the softmax's own precision, and ds is a difference of dp. p and ds are
// factors of products, so they have the type of activations. If that has 16
// bits, s is where dp is, and ds is where p after dropout was.
class ProductsPlan : public OperationPlan {
 public:
  static PlanOr Create(const CudaPlanContext& context,
                       const PlanRequest& request) {
    auto plan = std::make_unique<ProductsPlan>(context, request);
    LOCKSTEP_RETURN_IF_ERROR(plan->CreateProducts(request.operation->name));
    plan->SetSizes();
    plan->algorithm_name = "products";
    return plan;
  }

  ProductsPlan(const CudaPlanContext& context, const PlanRequest& request)
      : context_(context),
        op_(std::get<AttentionOp>(request.operation->kind)),
        n_(request.x.n),
        length_(request.x.h * request.x.w),
        size_(request.output.c / op_.heads) {
    backward_reads_x = false;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    void* const qkv = buffers.saved;
    void* const p = Offset(qkv, 3 * part_bytes());
    const Scratch scratch = ScratchIn(buffers.scratch);
    float* const scores =
        context_.is_float32() ? static_cast<float*>(p) : scratch.dp;
    LOCKSTEP_RETURN_IF_ERROR(
        SplitHeads(HeadsOf(3), buffers.x, qkv, context_.stream));
    LOCKSTEP_RETURN_IF_ERROR(scores_->Execute(qkv, Offset(qkv, part_bytes()),
                                              scores, buffers.scratch,
                                              context_.stream));
    LOCKSTEP_RETURN_IF_ERROR(SoftmaxForward(context_.type(), rows(), length_,
                                            scores, p, context_.stream));
    const void* kept = p;
    if (buffers.training && op_.dropout > 0) {
      LOCKSTEP_RETURN_IF_ERROR(
          Drop(*buffers.batch, context_.type(), p, scratch.kept));
      kept = scratch.kept;
    }
    LOCKSTEP_RETURN_IF_ERROR(
        values_->Execute(kept, Offset(qkv, 2 * part_bytes()), scratch.y,
                         buffers.scratch, context_.stream));
    return JoinHeads(HeadsOf(1), scratch.y, buffers.y, context_.stream);
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    void* const query = buffers.saved;
    void* const key = Offset(query, part_bytes());
    void* const value = Offset(query, 2 * part_bytes());
    void* const p = Offset(query, 3 * part_bytes());
    const Scratch scratch = ScratchIn(buffers.scratch);
    const auto multiply = [&](const std::optional<Product>& product,
                              const void* a, const void* b, void* c) {
      return product->Execute(a, b, c, buffers.scratch, context_.stream);
    };
    LOCKSTEP_RETURN_IF_ERROR(
        SplitHeads(HeadsOf(1), buffers.dy, scratch.y, context_.stream));
    const void* kept = p;
    if (op_.dropout > 0) {
      LOCKSTEP_RETURN_IF_ERROR(
          Drop(*buffers.batch, context_.type(), p, scratch.kept));
      kept = scratch.kept;
    }
    LOCKSTEP_RETURN_IF_ERROR(multiply(dvalue_, kept, scratch.y,
                                      Offset(scratch.dqkv, 2 * part_bytes())));
    LOCKSTEP_RETURN_IF_ERROR(multiply(dp_, scratch.y, value, scratch.dp));
    if (op_.dropout > 0) {
      LOCKSTEP_RETURN_IF_ERROR(
          Drop(*buffers.batch, DataType::kFloat32, scratch.dp, scratch.dp));
    }
    void* const ds = context_.is_float32() ? scratch.dp : scratch.kept;
    LOCKSTEP_RETURN_IF_ERROR(SoftmaxBackward(
        context_.type(), rows(), length_, p, scratch.dp, ds, context_.stream));
    LOCKSTEP_RETURN_IF_ERROR(multiply(dquery_, ds, key, scratch.dqkv));
    LOCKSTEP_RETURN_IF_ERROR(
        multiply(dkey_, ds, query, Offset(scratch.dqkv, part_bytes())));
    return JoinHeads(HeadsOf(3), scratch.dqkv, buffers.dx, context_.stream);
  }

 private:
  // Places in the scratch memory; all begin at multiples of 64 bytes.
  struct Scratch {
    void *y, *dqkv;
    float* dp;
    void* kept;
  };

  // Returns the bytes between queries, keys and values by heads.
  int64_t part_bytes() const {
    return AlignedBytes(rows() * size_ * SizeOf(context_.type()));
  }
  // Returns the bytes of a matrix like p.
  int64_t ScoreBytes(DataType type) const {
    return AlignedBytes(rows() * length_ * SizeOf(type));
  }
  // Returns the rows of p over all samples and heads.
  int64_t rows() const { return n_ * op_.heads * length_; }

  HeadShape HeadsOf(int64_t parts) const {
    return {.n = n_,
            .length = length_,
            .parts = parts,
            .heads = op_.heads,
            .size = size_,
            .part_stride = part_bytes() / SizeOf(context_.type()),
            .type = context_.type()};
  }
  Scratch ScratchIn(void* memory) const {
    void* const y = Offset(memory, workspace_bytes_);
    void* const dqkv = Offset(y, part_bytes());
    void* const dp = Offset(dqkv, 3 * part_bytes());
    return {y, dqkv, static_cast<float*>(dp),
            Offset(dp, ScoreBytes(DataType::kFloat32))};
  }

  absl::Status CreateProducts(const std::string& name) {
    const auto scale =
        static_cast<float>(1 / std::sqrt(static_cast<double>(size_)));
    struct Request {
      std::optional<Product>& product;
      int64_t columns, inner;
      bool transpose_a, transpose_b;
      float scale;
      DataType written;
    };
    const DataType type = context_.type();
    constexpr DataType kWide = DataType::kFloat32;
    for (const Request& request :
         {Request{scores_, length_, size_, false, true, scale, kWide},
          {values_, size_, length_, false, false, 1, type},
          {dvalue_, size_, length_, true, false, 1, type},
          {dp_, length_, size_, false, true, 1, kWide},
          {dquery_, size_, length_, false, false, scale, type},
          {dkey_, size_, length_, true, false, scale, type}}) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          request.product,
          Product::Create(
              context_.cublas,
              {.name = name,
               .batch = n_ * op_.heads,
               .rows = length_,
               .columns = request.columns,
               .inner = request.inner,
               .transpose_a = request.transpose_a,
               .transpose_b = request.transpose_b,
               .scale = request.scale,
               .type = type,
               .written = request.written,
               .tf32 = context_.precision == ConvolutionPrecision::kTf32}));
      workspace_bytes_ = std::max(
          workspace_bytes_, AlignedBytes(request.product->workspace_bytes()));
    }
    return absl::OkStatus();
  }

  void SetSizes() {
    const DataType type = context_.type();
    saved_bytes = 3 * part_bytes() + ScoreBytes(type);
    const bool has_kept = op_.dropout > 0 || !context_.is_float32();
    scratch_bytes = workspace_bytes_ + 4 * part_bytes() +
                    ScoreBytes(DataType::kFloat32) +
                    (has_kept ? ScoreBytes(type) : 0);
  }

  absl::Status Drop(const Batch& batch, DataType type, const void* from,
                    void* to) const {
    return DropOutOnGpu(
        DeviceMaskKeyOf(context_, batch, op_.layer, op_.dropout), type, n_,
        op_.heads * length_ * length_, from, to, context_.stream);
  }

  const CudaPlanContext context_;
  const AttentionOp op_;
  const int64_t n_, length_, size_;
  int64_t workspace_bytes_ = 0;
  std::optional<Product> scores_, values_, dvalue_, dp_, dquery_, dkey_;
};

// Attention by cuDNN's fused kernels. `saved` holds the statistics.
class FusedPlan : public OperationPlan {
 public:
  using Shared = std::shared_ptr<const FusedAttentionPlan>;

  static PlanOr Create(const CudaPlanContext& context,
                       const PlanRequest& request) {
    const auto& op = std::get<AttentionOp>(request.operation->kind);
    AttentionGraph graph = {.name = request.operation->name,
                            .type = context.type(),
                            .n = request.x.n,
                            .heads = op.heads,
                            .length = request.x.h * request.x.w,
                            .size = request.output.c / op.heads};
    LOCKSTEP_ASSIGN_OR_RETURN(
        Shared forward, context.attention_plans->Get(*context.card, graph));
    graph.pass = AttentionPass::kBackward;
    LOCKSTEP_ASSIGN_OR_RETURN(
        Shared backward, context.attention_plans->Get(*context.card, graph));
    auto plan = std::make_unique<FusedPlan>(context, std::move(forward),
                                            std::move(backward));
    plan->saved_bytes =
        graph.n * graph.heads * graph.length * SizeOf(DataType::kFloat32);
    return plan;
  }

  FusedPlan(const CudaPlanContext& context, Shared forward, Shared backward)
      : context_(context),
        forward_(std::move(forward)),
        backward_(std::move(backward)) {
    algorithm_name =
        absl::StrCat("fused ", forward_->engine(), ", ", backward_->engine());
    scratch_bytes =
        std::max(forward_->workspace_bytes(), backward_->workspace_bytes());
    backward_reads_y = true;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return forward_->Execute(context_.cudnn,
                             {.qkv = buffers.x,
                              .y = buffers.y,
                              .statistics = static_cast<float*>(buffers.saved)},
                             buffers.scratch);
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    return backward_->Execute(context_.cudnn,
                              {.qkv = buffers.x,
                               .y = const_cast<void*>(buffers.y),
                               .statistics = static_cast<float*>(buffers.saved),
                               .dy = buffers.dy,
                               .dqkv = buffers.dx},
                              buffers.scratch);
  }

 private:
  const CudaPlanContext context_;
  const Shared forward_, backward_;
};

}  // namespace

PlanOr PlanAttention(const CudaPlanContext& context,
                     const PlanRequest& request) {
  // cuDNN's attention cannot take the masks of random_mask.h.
  if (std::get<AttentionOp>(request.operation->kind).dropout == 0) {
    PlanOr fused = FusedPlan::Create(context, request);
    if (!absl::IsUnimplemented(fused.status())) return fused;
  }
  return ProductsPlan::Create(context, request);
}

}  // namespace lockstep
