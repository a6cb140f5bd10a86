// oneDNN's pooling.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/cpu/layer.h"
#include "models/cpu/layers.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {
namespace {

class AveragePoolPlan : public LayerPlan {
 public:
  // Throws dnnl::error.
  AveragePoolPlan(const LayerContext& context, std::string name,
                  const Shape& input, const Shape& output,
                  const dnnl::memory::dims& window)
      : context_(context), name_(std::move(name)), output_(output) {
    const onednn::PoolingShape shape{.x = ChannelsLast(input),
                                     .y = ChannelsLast(output),
                                     .strides = window,
                                     .window = window,
                                     .padding = {0, 0}};
    const auto forward = onednn::AveragePoolForward(context.engine, shape);
    const auto backward =
        onednn::AveragePoolBackward(context.engine, shape, forward);
    forward_ = Primitive(context.engine, dnnl::pooling_forward(forward),
                         {{DNNL_ARG_SRC, shape.x},
                          {DNNL_ARG_DST, shape.y},
                          {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}});
    backward_ = Primitive(context.engine, dnnl::pooling_backward(backward),
                          {{DNNL_ARG_DIFF_SRC, shape.x},
                           {DNNL_ARG_DIFF_DST, shape.y},
                           {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()}});
    temporary_size_ = std::max(AlignedSize(forward.scratchpad_desc()),
                               AlignedSize(backward.scratchpad_desc()));
  }

  const Shape& output() const override { return output_; }
  int64_t saved_size() const override { return 0; }
  int64_t temporary_size() const override { return temporary_size_; }

  absl::Status Forward(const Forwards& buffers) override {
    return CatchOnednn(name_, [&] {
      forward_.Run(context_.stream, {{DNNL_ARG_SRC, buffers.x},
                                     {DNNL_ARG_DST, buffers.y},
                                     {DNNL_ARG_SCRATCHPAD, buffers.temporary}});
    });
  }

  absl::Status Backward(const Backwards& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    return CatchOnednn(name_, [&] {
      backward_.Run(context_.stream,
                    {{DNNL_ARG_DIFF_SRC, buffers.dx},
                     {DNNL_ARG_DIFF_DST, buffers.dy},
                     {DNNL_ARG_SCRATCHPAD, buffers.temporary}});
    });
  }

 private:
  LayerContext context_;
  std::string name_;
  Shape output_;
  int64_t temporary_size_ = 0;
  Primitive forward_, backward_;
};

class AveragePool : public Layer {
 public:
  // window: none for all of the input.
  AveragePool(std::string name, std::optional<int64_t> window)
      : name_(std::move(name)), window_(window) {}

  absl::StatusOr<std::unique_ptr<LayerPlan>> Plan(
      const LayerContext& context, const Shape& input,
      bool /*input_gradient*/) const override {
    const int64_t height = window_.value_or(input.h);
    const int64_t width = window_.value_or(input.w);
    if (input.h < height || input.w < width) {
      return absl::InvalidArgumentError(
          absl::StrCat(name_, ": window ", height, " does not fit an input of ",
                       input.h, "x", input.w));
    }
    const Shape output{.n = input.n,
                       .c = input.c,
                       .h = input.h / height,
                       .w = input.w / width};
    if (input.n == 0) return CreateEmptyPlan(*context.parameters, {}, output);
    std::unique_ptr<LayerPlan> plan;
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(name_, [&] {
      plan = std::make_unique<AveragePoolPlan>(
          context, name_, input, output, dnnl::memory::dims{height, width});
    }));
    return plan;
  }

 private:
  std::string name_;
  std::optional<int64_t> window_;
};

}  // namespace

std::unique_ptr<Layer> CreateAveragePool(std::string name, int64_t window) {
  return std::make_unique<AveragePool>(std::move(name), window);
}

std::unique_ptr<Layer> CreateGlobalAveragePool(std::string name) {
  return std::make_unique<AveragePool>(std::move(name), std::nullopt);
}

}  // namespace lockstep
