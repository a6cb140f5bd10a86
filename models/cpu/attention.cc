// Multi-head self-attention. oneDNN multiplies queries, keys and values in the
// memory where the linear layer wrote them, without a copy.
#include "models/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "models/cpu/onednn.h"
#include "models/cpu/plan.h"
#include "models/cpu/pointwise.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/step_memory.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {
namespace {

using dnnl::memory;
using onednn::Desc;

// One product of matrices for every sample and head: c = scale * a b.
class Product {
 public:
  Product() = default;
  Product(const dnnl::engine& engine, const Desc& a, const Desc& b,
          const Desc& c, float scale) {
    const auto desc =
        onednn::Forward<dnnl::matmul>(engine, {.scale = scale}, a, b, c);
    product_ = Primitive(engine, dnnl::matmul(desc),
                         {{DNNL_ARG_SRC, a},
                          {DNNL_ARG_WEIGHTS, b},
                          {DNNL_ARG_DST, c},
                          {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}});
    scratch_bytes = AlignedBytes(desc.scratchpad_desc());
  }

  void Run(dnnl::stream& stream, const void* a, const void* b, void* c,
           void* scratch) {
    product_.Run(stream, {{DNNL_ARG_SRC, a},
                          {DNNL_ARG_WEIGHTS, b},
                          {DNNL_ARG_DST, c},
                          {DNNL_ARG_SCRATCHPAD, scratch}});
  }

  int64_t scratch_bytes = 0;

 private:
  Primitive product_;
};

// With s = q k^T / sqrt(d), p = softmax(s), y = p v:
//   dv = p^T dy,  dp = dy v^T,  ds = p (dp - sum(dp p)),
//   dq = ds k / sqrt(d),  dk = ds^T q / sqrt(d).
// `saved` holds p, [n, heads, length, length]. Scratch holds dp and the
// dropped-out p.
class AttentionPlan : public OperationPlan {
 public:
  // Throws dnnl::error.
  AttentionPlan(const PlanContext& context, const PlanRequest& request)
      : context_(context),
        name_(request.operation->name),
        op_(std::get<AttentionOp>(request.operation->kind)),
        n_(request.x.n),
        width_(request.output.c),
        length_(request.x.h * request.x.w) {
    const int64_t heads = op_.heads;
    const int64_t d = width_ / heads;
    const auto type = OnednnType(context.type);
    // Descriptors of a query, key or value; of y; and of their transposes.
    const auto rows = [&](int64_t pitch) {
      return Desc({n_, heads, length_, d}, type,
                  memory::dims{length_ * pitch, d, pitch, 1});
    };
    const auto columns = [&](int64_t pitch) {
      return Desc({n_, heads, d, length_}, type,
                  memory::dims{length_ * pitch, d, 1, pitch});
    };
    const memory::dims square = {n_, heads, length_, length_};
    const int64_t size = length_ * length_;
    const Desc s(square, type, memory::dims{heads * size, size, length_, 1});
    const Desc transposed(square, type,
                          memory::dims{heads * size, size, 1, length_});
    const Desc part = rows(3 * width_);
    const Desc part_transposed = columns(3 * width_);
    const auto scale =
        static_cast<float>(1 / std::sqrt(static_cast<double>(d)));
    const dnnl::engine& engine = context.engine;
    scores_ = Product(engine, part, part_transposed, s, scale);
    values_ = Product(engine, s, part, rows(width_), 1);
    dvalue_ = Product(engine, transposed, rows(width_), part, 1);
    dscores_ = Product(engine, rows(width_), part_transposed, s, 1);
    dquery_ = Product(engine, s, part, part, scale);
    dkey_ = Product(engine, transposed, part, part, scale);
    PlanSoftmax(size);
    for (const Product* product :
         {&scores_, &values_, &dvalue_, &dscores_, &dquery_, &dkey_}) {
      scratchpad_bytes_ = std::max(scratchpad_bytes_, product->scratch_bytes);
    }
    matrix_bytes_ = AlignedBytes(s);
    saved_bytes = matrix_bytes_;
    scratch_bytes = scratchpad_bytes_ + 2 * matrix_bytes_;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return CatchOnednn(name_, [&] {
      dnnl::stream& stream = context_.stream;
      void* const p = buffers.saved;
      scores_.Run(stream, Part(buffers.x, 0), Part(buffers.x, 1), p,
                  buffers.scratch);
      softmax_.Run(stream, {{DNNL_ARG_SRC, p},
                            {DNNL_ARG_DST, p},
                            {DNNL_ARG_SCRATCHPAD, buffers.scratch}});
      const void* kept = p;
      if (buffers.training && op_.dropout > 0) {
        kept = Dropped(*buffers.batch, p, buffers.scratch);
      }
      values_.Run(stream, kept, Part(buffers.x, 2), buffers.y, buffers.scratch);
    });
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    return CatchOnednn(name_, [&] {
      dnnl::stream& stream = context_.stream;
      void* const p = buffers.saved;
      void* const dp = Offset(buffers.scratch, scratchpad_bytes_);
      const void* kept = p;
      if (op_.dropout > 0) {
        kept = Dropped(*buffers.batch, p, buffers.scratch);
      }
      dvalue_.Run(stream, kept, buffers.dy, Part(buffers.dx, 2),
                  buffers.scratch);
      dscores_.Run(stream, buffers.dy, Part(buffers.x, 2), dp, buffers.scratch);
      if (op_.dropout > 0) Drop(*buffers.batch, dp, dp);
      softmax_backward_.Run(stream, {{DNNL_ARG_DST, p},
                                     {DNNL_ARG_DIFF_DST, dp},
                                     {DNNL_ARG_DIFF_SRC, dp},
                                     {DNNL_ARG_SCRATCHPAD, buffers.scratch}});
      dquery_.Run(stream, dp, Part(buffers.x, 1), Part(buffers.dx, 0),
                  buffers.scratch);
      dkey_.Run(stream, dp, Part(buffers.x, 0), Part(buffers.dx, 1),
                buffers.scratch);
    });
  }

 private:
  void PlanSoftmax(int64_t size) {
    const Desc rows =
        Rows(n_ * op_.heads * length_, size / length_, context_.type);
    const auto forward =
        onednn::SoftmaxForward(context_.engine, rows, /*last=*/1);
    const auto backward =
        onednn::SoftmaxBackward(forward, context_.engine, rows, /*last=*/1);
    softmax_ = Primitive(context_.engine, dnnl::softmax_forward(forward),
                         {{DNNL_ARG_SRC, rows},
                          {DNNL_ARG_DST, rows},
                          {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}});
    softmax_backward_ =
        Primitive(context_.engine, dnnl::softmax_backward(backward),
                  {{DNNL_ARG_DST, rows},
                   {DNNL_ARG_DIFF_DST, rows},
                   {DNNL_ARG_DIFF_SRC, rows},
                   {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()}});
    scratchpad_bytes_ = std::max(AlignedBytes(forward.scratchpad_desc()),
                                 AlignedBytes(backward.scratchpad_desc()));
  }

  // Returns the start of the query (0), key (1) or value (2).
  template <typename T>
  T* Part(T* qkv, int part) const {
    return const_cast<T*>(
        Offset(const_cast<void*>(static_cast<const void*>(qkv)),
               part * width_ * SizeOf(context_.type)));
  }

  void Drop(const Batch& batch, const void* from, void* to) const {
    DropOut(batch, op_.layer, op_.dropout, context_.type, n_,
            op_.heads * length_ * length_, from, to);
  }
  const void* Dropped(const Batch& batch, const void* p, void* scratch) const {
    void* const to = Offset(scratch, scratchpad_bytes_ + matrix_bytes_);
    Drop(batch, p, to);
    return to;
  }

  PlanContext context_;
  const std::string name_;
  const AttentionOp op_;
  const int64_t n_, width_, length_;
  int64_t scratchpad_bytes_ = 0;
  int64_t matrix_bytes_ = 0;
  Product scores_, values_, dvalue_, dscores_, dquery_, dkey_;
  Primitive softmax_, softmax_backward_;
};

}  // namespace

PlanOr PlanAttention(const PlanContext& context, const PlanRequest& request) {
  return MakePlan(context, request, {}, [&] {
    return std::make_unique<AttentionPlan>(context, request);
  });
}

}  // namespace lockstep
