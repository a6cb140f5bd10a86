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
#include "base/status_macros.h"
#include "models/cuda/convolution.h"
#include "models/cuda/dropout.h"
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

// For each head, with q, k and v [length, size], s = q k' / sqrt(size), p =
// softmax(s) and y = p v:
//   dv = p' dy,  dp = dy v',  ds = p (dp - sum(dp p)),
//   dq = ds k / sqrt(size),  dk = ds' q / sqrt(size).
// `saved` holds q, k and v by heads, then p. Scratch holds the workspace of the
// products, y or dy by heads, then in the backward pass dq, dk and dv by heads,
// dp, and p after dropout.
class AttentionPlan : public OperationPlan {
 public:
  static PlanOr Create(const CudaPlanContext& context,
                       const PlanRequest& request) {
    auto plan = std::make_unique<AttentionPlan>(context, request);
    LOCKSTEP_RETURN_IF_ERROR(plan->CreateProducts(request.operation->name));
    plan->SetSizes();
    return plan;
  }

  AttentionPlan(const CudaPlanContext& context, const PlanRequest& request)
      : context_(context),
        op_(std::get<AttentionOp>(request.operation->kind)),
        n_(request.x.n),
        length_(request.x.h * request.x.w),
        size_(request.output.c / op_.heads) {
    backward_reads_x = false;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    float* const qkv = static_cast<float*>(buffers.saved);
    float* const p = qkv + 3 * part();
    const Scratch scratch = ScratchIn(buffers.scratch);
    LOCKSTEP_RETURN_IF_ERROR(SplitHeads(HeadsOf(3),
                                        static_cast<const float*>(buffers.x),
                                        qkv, context_.stream));
    LOCKSTEP_RETURN_IF_ERROR(scores_->Execute(
        qkv, qkv + part(), p, buffers.scratch, context_.stream));
    LOCKSTEP_RETURN_IF_ERROR(
        SoftmaxForward(rows(), length_, p, context_.stream));
    const float* kept = p;
    if (buffers.training && op_.dropout > 0) {
      LOCKSTEP_RETURN_IF_ERROR(Drop(*buffers.batch, p, scratch.kept));
      kept = scratch.kept;
    }
    LOCKSTEP_RETURN_IF_ERROR(values_->Execute(
        kept, qkv + 2 * part(), scratch.y, buffers.scratch, context_.stream));
    return JoinHeads(HeadsOf(1), scratch.y, static_cast<float*>(buffers.y),
                     context_.stream);
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    const float* const qkv = static_cast<const float*>(buffers.saved);
    const float* const p = qkv + 3 * part();
    const Scratch scratch = ScratchIn(buffers.scratch);
    const auto multiply = [&](const std::optional<Product>& product,
                              const float* a, const float* b, float* c) {
      return product->Execute(a, b, c, buffers.scratch, context_.stream);
    };
    LOCKSTEP_RETURN_IF_ERROR(SplitHeads(HeadsOf(1),
                                        static_cast<const float*>(buffers.dy),
                                        scratch.y, context_.stream));
    const float* kept = p;
    if (op_.dropout > 0) {
      LOCKSTEP_RETURN_IF_ERROR(Drop(*buffers.batch, p, scratch.kept));
      kept = scratch.kept;
    }
    float* const dvalue = scratch.dqkv + 2 * part();
    LOCKSTEP_RETURN_IF_ERROR(multiply(dvalue_, kept, scratch.y, dvalue));
    LOCKSTEP_RETURN_IF_ERROR(
        multiply(dscores_, scratch.y, qkv + 2 * part(), scratch.dp));
    if (op_.dropout > 0) {
      LOCKSTEP_RETURN_IF_ERROR(Drop(*buffers.batch, scratch.dp, scratch.dp));
    }
    LOCKSTEP_RETURN_IF_ERROR(
        SoftmaxBackward(rows(), length_, p, scratch.dp, context_.stream));
    LOCKSTEP_RETURN_IF_ERROR(
        multiply(dquery_, scratch.dp, qkv + part(), scratch.dqkv));
    LOCKSTEP_RETURN_IF_ERROR(
        multiply(dkey_, scratch.dp, qkv, scratch.dqkv + part()));
    return JoinHeads(HeadsOf(3), scratch.dqkv, static_cast<float*>(buffers.dx),
                     context_.stream);
  }

 private:
  // Places in the scratch memory; all begin at multiples of 64 bytes.
  struct Scratch {
    float *y, *dqkv, *dp, *kept;
  };

  // Returns the floats between queries, keys and values by heads, and of p.
  int64_t part() const { return Aligned(rows() * size_); }
  int64_t scores() const { return Aligned(rows() * length_); }
  static int64_t Aligned(int64_t floats) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
    return AlignedBytes(floats * kBytes) / kBytes;
  }
  // Returns the rows of p over all samples and heads.
  int64_t rows() const { return n_ * op_.heads * length_; }

  HeadShape HeadsOf(int64_t parts) const {
    return {.n = n_,
            .length = length_,
            .parts = parts,
            .heads = op_.heads,
            .size = size_,
            .part_stride = part()};
  }
  Scratch ScratchIn(void* memory) const {
    float* const y = static_cast<float*>(Offset(memory, workspace_bytes_));
    float* const dqkv = y + part();
    float* const dp = dqkv + 3 * part();
    return {y, dqkv, dp, dp + scores()};
  }

  absl::Status CreateProducts(const std::string& name) {
    const auto scale =
        static_cast<float>(1 / std::sqrt(static_cast<double>(size_)));
    struct Request {
      std::optional<Product>& product;
      int64_t columns, inner;
      bool transpose_a, transpose_b;
      float scale;
    };
    for (const Request& request :
         {Request{scores_, length_, size_, false, true, scale},
          {values_, size_, length_, false, false, 1},
          {dvalue_, size_, length_, true, false, 1},
          {dscores_, length_, size_, false, true, 1},
          {dquery_, size_, length_, false, false, scale},
          {dkey_, size_, length_, true, false, scale}}) {
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
               .tf32 = context_.precision == ConvolutionPrecision::kTf32}));
      workspace_bytes_ = std::max(
          workspace_bytes_, AlignedBytes(request.product->workspace_bytes()));
    }
    return absl::OkStatus();
  }

  void SetSizes() {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
    saved_bytes = (3 * part() + scores()) * kBytes;
    const int64_t matrices = op_.dropout > 0 ? 2 : 1;
    scratch_bytes =
        workspace_bytes_ + (4 * part() + matrices * scores()) * kBytes;
  }

  absl::Status Drop(const Batch& batch, const float* from, float* to) const {
    return DropOutOnGpu(
        DeviceMaskKeyOf(context_, batch, op_.layer, op_.dropout), n_,
        op_.heads * length_ * length_, from, to, context_.stream);
  }

  const CudaPlanContext context_;
  const AttentionOp op_;
  const int64_t n_, length_, size_;
  int64_t workspace_bytes_ = 0;
  std::optional<Product> scores_, values_, dvalue_, dscores_, dquery_, dkey_;
};

}  // namespace

PlanOr PlanAttention(const CudaPlanContext& context,
                     const PlanRequest& request) {
  return AttentionPlan::Create(context, request);
}

}  // namespace lockstep
