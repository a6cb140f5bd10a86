// Operations that touch each value once: GELU, sums, dropout, and the first and
// last operations of a transformer.
#include "models/cpu/pointwise.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cpu/onednn.h"
#include "models/cpu/plan.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/random_mask.h"
#include "models/program/step_memory.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {
namespace {

// Calls f with a null pointer to the type's element.
template <typename F>
void WithElement(DataType type, const F& f) {
  if (type == DataType::kBFloat16) {
    f(static_cast<BFloat16*>(nullptr));
  } else {
    f(static_cast<float*>(nullptr));
  }
}

inline float Load(float x) { return x; }
inline float Load(BFloat16 x) { return ToFloat(x); }
inline void Store(float x, float& to) { to = x; }
inline void Store(float x, BFloat16& to) { to = ToBFloat16(x); }

class GeluPlan : public OperationPlan {
 public:
  // Throws dnnl::error.
  GeluPlan(const PlanContext& context, const PlanRequest& request)
      : context_(context), name_(request.operation->name) {
    constexpr auto kGelu = dnnl::algorithm::eltwise_gelu_erf;
    const auto flat = Flat(request.x.size(), context.type);
    const auto forward = onednn::EltwiseForward(context.engine, kGelu, flat);
    const auto backward =
        onednn::EltwiseBackward(forward, context.engine, kGelu, flat);
    forward_ = Primitive(context.engine, dnnl::eltwise_forward(forward),
                         {{DNNL_ARG_SRC, flat},
                          {DNNL_ARG_DST, flat},
                          {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}});
    backward_ = Primitive(context.engine, dnnl::eltwise_backward(backward),
                          {{DNNL_ARG_SRC, flat},
                           {DNNL_ARG_DIFF_DST, flat},
                           {DNNL_ARG_DIFF_SRC, flat},
                           {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()}});
    scratch_bytes = std::max(AlignedBytes(forward.scratchpad_desc()),
                             AlignedBytes(backward.scratchpad_desc()));
    dx_may_share_dy = true;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return CatchOnednn(name_, [&] {
      forward_.Run(context_.stream, {{DNNL_ARG_SRC, buffers.x},
                                     {DNNL_ARG_DST, buffers.y},
                                     {DNNL_ARG_SCRATCHPAD, buffers.scratch}});
    });
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    return CatchOnednn(name_, [&] {
      backward_.Run(context_.stream, {{DNNL_ARG_SRC, buffers.x},
                                      {DNNL_ARG_DIFF_DST, buffers.dy},
                                      {DNNL_ARG_DIFF_SRC, buffers.dx},
                                      {DNNL_ARG_SCRATCHPAD, buffers.scratch}});
    });
  }

 private:
  PlanContext context_;
  const std::string name_;
  Primitive forward_, backward_;
};

// Puts the class token before the patches, and adds the position embedding.
class EmbedPlan : public OperationPlan {
 public:
  EmbedPlan(const PlanContext& context, const PlanRequest& request)
      : context_(context),
        op_(std::get<EmbedOp>(request.operation->kind)),
        n_(request.x.n),
        width_(request.output.c),
        length_(request.output.h) {
    backward_reads_x = false;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    const Parameters& parameters = *context_.parameters;
    const float* const token = parameters.value(op_.class_token).data();
    const float* const position = parameters.value(op_.position).data();
    WithElement(context_.type, [&]<typename T>(T*) {
      const T* x = static_cast<const T*>(buffers.x);
      T* y = static_cast<T*>(buffers.y);
      const int64_t patches = (length_ - 1) * width_;
      for (int64_t n = 0; n < n_; ++n) {
        for (int64_t i = 0; i < width_; ++i)
          Store(token[i] + position[i], y[i]);
        y += width_;
        for (int64_t i = 0; i < patches; ++i) {
          Store(Load(x[i]) + position[width_ + i], y[i]);
        }
        x += patches;
        y += patches;
      }
    });
    return absl::OkStatus();
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady ready) override {
    Parameters& parameters = *context_.parameters;
    const std::span<float> position = parameters.gradient(op_.position);
    std::ranges::fill(position, 0.0f);
    WithElement(context_.type, [&]<typename T>(T*) {
      const T* dy = static_cast<const T*>(buffers.dy);
      T* dx = static_cast<T*>(buffers.dx);
      const int64_t size = length_ * width_;
      for (int64_t n = 0; n < n_; ++n, dy += size) {
        for (int64_t i = 0; i < size; ++i) position[i] += Load(dy[i]);
        if (dx == nullptr) continue;
        std::copy_n(dy + width_, size - width_, dx + n * (size - width_));
      }
    });
    std::copy_n(position.begin(), width_,
                parameters.gradient(op_.class_token).begin());
    ready(op_.position);
    ready(op_.class_token);
    return absl::OkStatus();
  }

 private:
  PlanContext context_;
  const EmbedOp op_;
  const int64_t n_, width_, length_;
};

class FirstPositionPlan : public OperationPlan {
 public:
  FirstPositionPlan(const PlanContext& context, const PlanRequest& request)
      : n_(request.x.n),
        first_(request.x.c * SizeOf(context.type)),
        sample_(first_ * request.x.h * request.x.w) {
    backward_reads_x = false;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    const auto* const x = static_cast<const char*>(buffers.x);
    auto* const y = static_cast<char*>(buffers.y);
    for (int64_t n = 0; n < n_; ++n) {
      std::copy_n(x + n * sample_, first_, y + n * first_);
    }
    return absl::OkStatus();
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    const auto* const dy = static_cast<const char*>(buffers.dy);
    auto* const dx = static_cast<char*>(buffers.dx);
    for (int64_t n = 0; n < n_; ++n) {
      std::copy_n(dy + n * first_, first_, dx + n * sample_);
      std::fill_n(dx + n * sample_ + first_, sample_ - first_, '\0');
    }
    return absl::OkStatus();
  }

 private:
  const int64_t n_, first_, sample_;  // The last two in bytes.
};

class DropoutPlan : public OperationPlan {
 public:
  DropoutPlan(const PlanContext& context, const PlanRequest& request)
      : type_(context.type),
        op_(std::get<DropoutOp>(request.operation->kind)),
        n_(request.x.n),
        size_(request.output.c * request.output.h * request.output.w) {
    backward_reads_x = false;
    dx_may_share_dy = true;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    if (buffers.training) {
      DropOut(*buffers.batch, op_.layer, op_.rate, type_, n_, size_, buffers.x,
              buffers.y);
    } else {
      std::copy_n(static_cast<const char*>(buffers.x),
                  n_ * size_ * SizeOf(type_), static_cast<char*>(buffers.y));
    }
    return absl::OkStatus();
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    DropOut(*buffers.batch, op_.layer, op_.rate, type_, n_, size_, buffers.dy,
            buffers.dx);
    return absl::OkStatus();
  }

 private:
  const DataType type_;
  const DropoutOp op_;
  const int64_t n_, size_;
};

// Adds two inputs by oneDNN; with drop path, sample by sample.
class AddPlan : public OperationPlan {
 public:
  // Throws dnnl::error.
  AddPlan(const PlanContext& context, const PlanRequest& request)
      : context_(context),
        name_(request.operation->name),
        op_(std::get<AddOp>(request.operation->kind)),
        n_(request.x.n),
        size_(request.output.c * request.output.h * request.output.w),
        sum_(context.engine, request.x.size(), context.type) {
    backward_reads_x = false;
    // Without drop path both gradients equal dy.
    dx_may_share_dy = true;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    if (op_.drop_path == 0 || !buffers.training) {
      return CatchOnednn(name_, [&] {
        sum_.Run(context_.stream, buffers.x, buffers.second, buffers.y);
      });
    }
    WithElement(context_.type, [&]<typename T>(T*) {
      const T* x = static_cast<const T*>(buffers.x);
      const T* branch = static_cast<const T*>(buffers.second);
      T* y = static_cast<T*>(buffers.y);
      for (int64_t n = 0; n < n_; ++n) {
        const float scale = ScaleOf(*buffers.batch, n);
        for (int64_t i = n * size_; i < (n + 1) * size_; ++i) {
          Store(Load(x[i]) + scale * Load(branch[i]), y[i]);
        }
      }
    });
    return absl::OkStatus();
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    WithElement(context_.type, [&]<typename T>(T*) {
      const T* dy = static_cast<const T*>(buffers.dy);
      T* branch = static_cast<T*>(buffers.dsecond);
      for (int64_t n = 0; n < n_; ++n) {
        const float scale = op_.drop_path == 0 ? 1 : ScaleOf(*buffers.batch, n);
        for (int64_t i = n * size_; i < (n + 1) * size_; ++i) {
          Store(scale * Load(dy[i]), branch[i]);
        }
      }
      if (buffers.dx != buffers.dy && buffers.dx != nullptr) {
        std::copy_n(dy, n_ * size_, static_cast<T*>(buffers.dx));
      }
    });
    return absl::OkStatus();
  }

 private:
  // Returns the factor of the branch: 0 if the sample drops it.
  float ScaleOf(const Batch& batch, int64_t n) const {
    const RandomMask mask(MaskKeyOf(batch, op_.layer, op_.drop_path), n);
    return mask.Keeps(0) ? mask.scale() : 0;
  }

  PlanContext context_;
  const std::string name_;
  const AddOp op_;
  const int64_t n_, size_;
  Sum sum_;
};

}  // namespace

void DropOut(const Batch& batch, int layer, double rate, DataType type,
             int64_t n, int64_t size, const void* from, void* to) {
  const MaskKey key = MaskKeyOf(batch, layer, rate);
  WithElement(type, [&]<typename T>(T*) {
    const T* in = static_cast<const T*>(from);
    T* out = static_cast<T*>(to);
    for (int64_t sample = 0; sample < n; ++sample) {
      const RandomMask mask(key, sample);
      for (int64_t i = 0; i < size; ++i, ++in, ++out) {
        Store(mask.Keeps(i) ? mask.scale() * Load(*in) : 0, *out);
      }
    }
  });
}

PlanOr PlanGelu(const PlanContext& context, const PlanRequest& request) {
  return MakePlan(context, request, {},
                  [&] { return std::make_unique<GeluPlan>(context, request); });
}

PlanOr PlanEmbed(const PlanContext& context, const PlanRequest& request) {
  return std::make_unique<EmbedPlan>(context, request);
}

PlanOr PlanFirstPosition(const PlanContext& context,
                         const PlanRequest& request) {
  return std::make_unique<FirstPositionPlan>(context, request);
}

PlanOr PlanDropout(const PlanContext& context, const PlanRequest& request) {
  return std::make_unique<DropoutPlan>(context, request);
}

PlanOr PlanAdd(const PlanContext& context, const PlanRequest& request) {
  return MakePlan(context, request, {},
                  [&] { return std::make_unique<AddPlan>(context, request); });
}

}  // namespace lockstep
