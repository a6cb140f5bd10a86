// oneDNN 2 and oneDNN 3 make primitive descriptors differently: these functions
// are the only place that knows. All are float32; they throw dnnl::error.
#ifndef LOCKSTEP_MODELS_CPU_ONEDNN_ADAPTER_H_
#define LOCKSTEP_MODELS_CPU_ONEDNN_ADAPTER_H_

#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep::onednn {

// Scratch space comes from the caller; ReLU follows the operation if `relu`.
dnnl::primitive_attr Attributes(bool relu);

struct ConvolutionShape {
  dnnl::memory::desc x, weights, bias, y;
  dnnl::memory::dims strides, padding;
};
dnnl::convolution_forward::primitive_desc ConvolutionForward(
    const dnnl::engine& engine, const ConvolutionShape& shape, bool relu);
dnnl::convolution_backward_weights::primitive_desc ConvolutionBackwardWeights(
    const dnnl::engine& engine, const ConvolutionShape& shape,
    const dnnl::convolution_forward::primitive_desc& forward);
dnnl::convolution_backward_data::primitive_desc ConvolutionBackwardData(
    const dnnl::engine& engine, const ConvolutionShape& shape,
    const dnnl::convolution_forward::primitive_desc& forward);

struct InnerProductShape {
  dnnl::memory::desc x, weights, bias, y;
};
dnnl::inner_product_forward::primitive_desc InnerProductForward(
    const dnnl::engine& engine, const InnerProductShape& shape, bool relu);
dnnl::inner_product_backward_weights::primitive_desc
InnerProductBackwardWeights(
    const dnnl::engine& engine, const InnerProductShape& shape,
    const dnnl::inner_product_forward::primitive_desc& forward);
dnnl::inner_product_backward_data::primitive_desc InnerProductBackwardData(
    const dnnl::engine& engine, const InnerProductShape& shape,
    const dnnl::inner_product_forward::primitive_desc& forward);

struct PoolingShape {
  dnnl::memory::desc x, y;
  dnnl::memory::dims strides, window, padding;
};
dnnl::pooling_forward::primitive_desc AveragePoolForward(
    const dnnl::engine& engine, const PoolingShape& shape);
dnnl::pooling_backward::primitive_desc AveragePoolBackward(
    const dnnl::engine& engine, const PoolingShape& shape,
    const dnnl::pooling_forward::primitive_desc& forward);

// The gradient of ReLU from its output: dx = y > 0 ? dy : 0.
dnnl::eltwise_backward::primitive_desc ReluBackwardFromOutput(
    const dnnl::engine& engine, const dnnl::memory::desc& y);

}  // namespace lockstep::onednn

#endif  // LOCKSTEP_MODELS_CPU_ONEDNN_ADAPTER_H_
