#include "models/cpu/onednn.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/model.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep::onednn {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;

constexpr auto kTraining = prop_kind::forward_training;
constexpr auto kAverage = algorithm::pooling_avg_exclude_padding;
constexpr auto kReluFromOutput = algorithm::eltwise_relu_use_dst_for_bwd;

}  // namespace

dnnl::primitive_attr Attributes(bool relu) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (relu) {
    dnnl::post_ops post;
#if DNNL_VERSION_MAJOR >= 3
    post.append_eltwise(algorithm::eltwise_relu, 0.0f, 0.0f);
#else
    post.append_eltwise(/*scale=*/1.0f, algorithm::eltwise_relu, 0.0f, 0.0f);
#endif
    attributes.set_post_ops(post);
  }
  return attributes;
}

// Pooling in oneDNN 3 has a dilation too, and element-wise primitives there
// have a second descriptor: of the output, or of its gradient.

dnnl::pooling_forward::primitive_desc AveragePoolForward(
    const dnnl::engine& engine, const memory::desc& x, const memory::desc& y,
    const memory::dims& window) {
  const memory::dims none = {0, 0};  // No padding, no dilation.
  return Forward<dnnl::pooling_forward>(engine, /*relu=*/false, kTraining,
                                        kAverage, x, y, window, window,
#if DNNL_VERSION_MAJOR >= 3
                                        none,
#endif
                                        none, none);
}

dnnl::pooling_backward::primitive_desc AveragePoolBackward(
    const dnnl::pooling_forward::primitive_desc& forward,
    const dnnl::engine& engine, const memory::desc& x, const memory::desc& y,
    const memory::dims& window) {
  const memory::dims none = {0, 0};
  return Backward<dnnl::pooling_backward>(engine, forward, kAverage, x, y,
                                          window, window,
#if DNNL_VERSION_MAJOR >= 3
                                          none,
#endif
                                          none, none);
}

dnnl::eltwise_backward::primitive_desc ReluBackwardFromOutput(
    const dnnl::engine& engine, const memory::desc& y) {
#if DNNL_VERSION_MAJOR >= 3
  const auto forward = Forward<dnnl::eltwise_forward>(
      engine, /*relu=*/false, kTraining, kReluFromOutput, y, y, 0.0f, 0.0f);
  return Backward<dnnl::eltwise_backward>(engine, forward, kReluFromOutput, y,
                                          y, y, 0.0f, 0.0f);
#else
  const auto forward = Forward<dnnl::eltwise_forward>(
      engine, /*relu=*/false, kTraining, kReluFromOutput, y, 0.0f, 0.0f);
  return Backward<dnnl::eltwise_backward>(engine, forward, kReluFromOutput, y,
                                          y, 0.0f, 0.0f);
#endif
}

}  // namespace lockstep::onednn

namespace lockstep {

absl::Status CatchOnednn(const std::string& layer,
                         absl::FunctionRef<void()> body) {
  try {
    body();
  } catch (const dnnl::error& error) {
    return absl::InternalError(
        absl::StrCat(layer, ": oneDNN: ", error.what(), " (status ",
                     static_cast<int>(error.status), ")"));
  }
  return absl::OkStatus();
}

dnnl::memory::desc ChannelsLast(const Shape& shape) {
  return {{shape.n, shape.c, shape.h, shape.w},
          dnnl::memory::data_type::f32,
          dnnl::memory::format_tag::nhwc};
}

int64_t AlignedSize(int64_t floats) {
  constexpr int64_t kUnit = AlignedBuffer::kAlignment / sizeof(float);
  return (floats + kUnit - 1) / kUnit * kUnit;
}

int64_t AlignedSize(const dnnl::memory::desc& desc) {
  const int64_t bytes = static_cast<int64_t>(desc.get_size());
  const int64_t float_bytes = sizeof(float);
  return AlignedSize((bytes + float_bytes - 1) / float_bytes);
}

Primitive::Primitive(
    const dnnl::engine& engine, const dnnl::primitive& primitive,
    std::initializer_list<std::pair<int, dnnl::memory::desc>> args)
    : primitive_(primitive) {
  for (const auto& [arg, desc] : args) {
    args_.emplace(arg, dnnl::memory(desc, engine, DNNL_MEMORY_NONE));
  }
}

void Primitive::Run(
    dnnl::stream& stream,
    std::initializer_list<std::pair<int, const float*>> pointers) {
  for (const auto& [arg, pointer] : pointers) {
    args_.at(arg).set_data_handle(const_cast<float*>(pointer));
  }
  primitive_.execute(stream, args_);
  stream.wait();
}

Reorder::Reorder(const dnnl::engine& engine, const dnnl::memory::desc& from,
                 const dnnl::memory::desc& to,
                 const dnnl::primitive_attr& attributes)
    : identity_(from == to && attributes.get_post_ops().len() == 0) {
  if (identity_) return;
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to,
                                           attributes);
  reorder_ = Primitive(engine, dnnl::reorder(desc),
                       {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

Reorder Reorder::Sum(const dnnl::engine& engine, int64_t size) {
  const dnnl::memory::desc flat({size}, dnnl::memory::data_type::f32,
                                dnnl::memory::format_tag::a);
  dnnl::post_ops add;
  add.append_sum(1.0f);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(add);
  return Reorder(engine, flat, flat, attributes);
}

void Reorder::Run(dnnl::stream& stream, const float* from, float* to) {
  reorder_.Run(stream, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

}  // namespace lockstep
