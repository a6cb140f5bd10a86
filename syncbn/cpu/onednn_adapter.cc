// The two halves make the same primitives through the two versions' interfaces.
#include "syncbn/cpu/onednn_adapter.h"

namespace lockstep::onednn {
namespace {

dnnl::primitive_attr CallersScratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

}  // namespace

#if DNNL_VERSION_MAJOR >= 3

dnnl::batch_normalization_forward::primitive_desc BatchNormForward(
    const dnnl::engine& engine, dnnl::prop_kind kind,
    const dnnl::memory::desc& data, float epsilon,
    dnnl::normalization_flags flags) {
  return {engine, kind, data, data, epsilon, flags, CallersScratch()};
}

dnnl::batch_normalization_backward::primitive_desc BatchNormBackward(
    const dnnl::engine& engine, dnnl::prop_kind kind,
    const dnnl::memory::desc& data, float epsilon,
    dnnl::normalization_flags flags) {
  const auto forward = BatchNormForward(
      engine, dnnl::prop_kind::forward_training, data, epsilon, flags);
  return {engine,          kind, data, data, data, epsilon, flags, forward,
          CallersScratch()};
}

#else

dnnl::batch_normalization_forward::primitive_desc BatchNormForward(
    const dnnl::engine& engine, dnnl::prop_kind kind,
    const dnnl::memory::desc& data, float epsilon,
    dnnl::normalization_flags flags) {
  return {{kind, data, epsilon, flags}, CallersScratch(), engine};
}

dnnl::batch_normalization_backward::primitive_desc BatchNormBackward(
    const dnnl::engine& engine, dnnl::prop_kind kind,
    const dnnl::memory::desc& data, float epsilon,
    dnnl::normalization_flags flags) {
  const auto forward = BatchNormForward(
      engine, dnnl::prop_kind::forward_training, data, epsilon, flags);
  return {
      {kind, data, data, epsilon, flags}, CallersScratch(), engine, forward};
}

#endif

}  // namespace lockstep::onednn
