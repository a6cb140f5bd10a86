// Attention in one kernel on a GPU: cuDNN's graphs and plans for it. The scores
// stay on the chip, and the backward pass computes them again.
#ifndef LOCKSTEP_MODELS_CUDA_FUSED_ATTENTION_H_
#define LOCKSTEP_MODELS_CUDA_FUSED_ATTENTION_H_

#include <cudnn.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "models/cuda/cudnn_plan.h"

namespace lockstep {

enum class AttentionPass { kForward, kBackward };

// One pass of multi-head self-attention. For each head, with q, k and v
// [length, size]: y = softmax(q k' / sqrt(size)) v.
struct AttentionGraph {
  std::string name = {};  // For messages: "vit blocks.0.attn".
  AttentionPass pass = AttentionPass::kForward;
  DataType type = DataType::kBFloat16;  // Of q, k, v, y and their gradients.
  int64_t n = 1;
  int64_t heads = 1;
  int64_t length = 1;
  int64_t size = 8;
};
// Returns, for example, "vit blocks.0.attn: attention forward bfloat16
// [256,197] 6x64".
std::string Describe(const AttentionGraph& graph);

// Device memory of one execution, aligned to 16 bytes, borrowed. A plan reads
// and writes what its pass names.
struct AttentionOperands {
  // q, k and v as [n, length, 3, heads, size]; read.
  const void* qkv = nullptr;
  // y as [n, length, heads, size]; the forward pass writes it, the backward
  // pass reads it.
  void* y = nullptr;
  // The logarithms of the sums of exp(scores), float32 [n, heads, length]; the
  // forward pass writes them, the backward pass reads them.
  float* statistics = nullptr;
  const void* dy = nullptr;  // Like y; the backward pass reads it.
  void* dqkv = nullptr;      // Like qkv; the backward pass writes it.
};

// cuDNN's plan of a pass. Scores, their sums and their gradients are float32;
// factors of products are rounded to the graph's type. The same inputs give the
// same bits in every run: the backward pass sums gradients of q in a fixed
// order, through a workspace that holds the gradients of scores in 16 bits,
// n * heads * length^2 of them.
class FusedAttentionPlan {
 public:
  // Costs what CudnnPlan::Create does, on each card. Every error begins with
  // Describe(graph). Errors: kUnimplemented for a type that has not 16 bits, a
  // size that is not a multiple of 8 or is over 128, a length of 1, or cuDNN
  // before 9.16; those of CudnnPlan::Create. Without CUDA's driver, cuDNN
  // builds no such plan.
  static absl::StatusOr<FusedAttentionPlan> Create(const CudnnDevice& device,
                                                   const AttentionGraph& graph);

  const std::string& engine() const { return plan_.engine(); }
  const std::string& notes() const { return plan_.notes(); }
  int64_t workspace_bytes() const;

  // Enqueues the pass, as CudnnPlan::Execute does. Every error begins with
  // Describe(graph).
  absl::Status Execute(cudnnHandle_t handle, const AttentionOperands& operands,
                       void* workspace) const;

 private:
  FusedAttentionPlan(AttentionGraph graph, CudnnPlan plan)
      : graph_(std::move(graph)), plan_(std::move(plan)) {}

  // Returns the bytes of the sums of y * dy, which follow cuDNN's workspace.
  int64_t SumBytes() const;

  AttentionGraph graph_;
  CudnnPlan plan_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_FUSED_ATTENTION_H_
