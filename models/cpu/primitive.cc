// Thin wrappers over dnnl::primitive and dnnl::memory.
#include "models/cpu/primitive.h"

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr int64_t kAlignedFloats = 16;  // 64 bytes.

}  // namespace

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
  return (floats + kAlignedFloats - 1) / kAlignedFloats * kAlignedFloats;
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

FormatConversion::FormatConversion(const dnnl::engine& engine,
                                   const dnnl::memory::desc& from,
                                   const dnnl::memory::desc& to)
    : identity_(from == to) {
  if (identity_) return;
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to);
  reorder_ = Primitive(engine, dnnl::reorder(desc),
                       {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

void FormatConversion::Run(dnnl::stream& stream, const float* from, float* to) {
  reorder_.Run(stream, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

Accumulation::Accumulation(const dnnl::engine& engine, int64_t size) {
  const dnnl::memory::desc flat({size}, dnnl::memory::data_type::f32,
                                dnnl::memory::format_tag::a);
  dnnl::post_ops add;
  add.append_sum(1.0f);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(add);
  const dnnl::reorder::primitive_desc desc(engine, flat, engine, flat,
                                           attributes);
  reorder_ = Primitive(engine, dnnl::reorder(desc),
                       {{DNNL_ARG_FROM, flat}, {DNNL_ARG_TO, flat}});
}

void Accumulation::Run(dnnl::stream& stream, const float* from, float* to) {
  reorder_.Run(stream, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

}  // namespace lockstep
