// Attention by cuDNN's fused kernels on a GPU: their graphs and plans. No
// scores are in memory; the backward pass computes them again.
#ifndef LOCKSTEP_MODELS_CUDA_FUSED_ATTENTION_H_
#define LOCKSTEP_MODELS_CUDA_FUSED_ATTENTION_H_

#include <cudnn.h>

#include <cstdint>
#include <map>
#include <memory>
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

// Device memory of one execution, aligned to 16 bytes, borrowed. Members that a
// pass neither reads nor writes may be null.
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

// cuDNN's plan of a pass. Scores and their sums are float32; factors of
// products are rounded to the graph's type, the gradients of scores too. The
// same inputs give the same bits in every run: the backward pass keeps the
// gradients of scores, n * heads * length^2 of them, in its workspace, and sums
// gradients of q from there in a fixed order.
class FusedAttentionPlan {
 public:
  // Compiles the engine, which takes about a second. Every error begins with
  // Describe(graph). Errors: kUnimplemented for a type that does not have 16
  // bits, a size that is not a multiple of 8 from 8 to 128, an empty tensor, a
  // length of 1, cuDNN before 9.16, an engine that does not keep gradients of
  // scores, or if cuDNN has no engine, as on cards before Ampere or without
  // CUDA's driver; other errors of CudnnPlan::Create.
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

// Plans by graph, whatever its name: the layers of a network share them. Not
// thread safe.
class FusedAttentionPlans {
 public:
  using PlanOrError = absl::StatusOr<std::shared_ptr<const FusedAttentionPlan>>;

  // Returns the plan, or the error of FusedAttentionPlan::Create, which only
  // the first call for a graph calls: an error names the first layer.
  PlanOrError Get(const CudnnDevice& device, const AttentionGraph& graph);

 private:
  std::map<std::string, PlanOrError> plans_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_FUSED_ATTENTION_H_
