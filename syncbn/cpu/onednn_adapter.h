// oneDNN 2 and oneDNN 3 make primitive descriptors differently: these functions
// are the only place here that knows. They throw dnnl::error.
#ifndef LOCKSTEP_SYNCBN_CPU_ONEDNN_ADAPTER_H_
#define LOCKSTEP_SYNCBN_CPU_ONEDNN_ADAPTER_H_

#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep::onednn {

// `data` describes x, y and their gradients. Scratch space comes from the
// caller.
dnnl::batch_normalization_forward::primitive_desc BatchNormForward(
    const dnnl::engine& engine, dnnl::prop_kind kind,
    const dnnl::memory::desc& data, float epsilon,
    dnnl::normalization_flags flags);

// Of a forward pass with the same flags. kind: backward, with the gradients of
// scale and shift, or backward_data.
dnnl::batch_normalization_backward::primitive_desc BatchNormBackward(
    const dnnl::engine& engine, dnnl::prop_kind kind,
    const dnnl::memory::desc& data, float epsilon,
    dnnl::normalization_flags flags);

}  // namespace lockstep::onednn

#endif  // LOCKSTEP_SYNCBN_CPU_ONEDNN_ADAPTER_H_
