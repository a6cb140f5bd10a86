// Convolution of small images: products of matrices, whose rows are pixels of
// all samples, for each position in the kernel. oneDNN's convolution uses a
// weight for the few pixels of one image only. Its weight gradient does not
// skip pixels outside the image.
#include "models/cpu/few_pixels.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cpu/onednn.h"
#include "models/cpu/plan.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/step_memory.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/batch_norm.h"

namespace lockstep {
namespace {

// This plan was faster for these sizes with AVX-512, on one thread and two, for
// batches of 2 or more: by a quarter for images of 4x4, by a tenth for 7x7, not
// for 14x14. Products of smaller matrices are mostly overhead.
constexpr int64_t kFewPixels = 49;         // In an output.
constexpr int64_t kManyWeights = 64 * 64;  // For one position in the kernel.

// The pixels of a batch in another order: by row of the image; in a row the
// columns 0, stride, 2 stride ..., then 1, stride + 1 ...; for each column, all
// samples. The pixels that a row of the output reads for one position in the
// kernel are therefore contiguous.
struct PixelOrder {
  Shape shape;
  int64_t stride;
  int64_t run;  // A pixel's contiguous channels in activations.

  int64_t ColumnsOfPhase() const { return (shape.w + stride - 1) / stride; }
  // Returns the number of pixels before pixel (h, w) of the first sample.
  int64_t PixelsBefore(int64_t h, int64_t w) const {
    return ((h * stride + w % stride) * ColumnsOfPhase() + w / stride) *
           shape.n;
  }
  int64_t size() const {
    return shape.h * stride * ColumnsOfPhase() * shape.n * shape.c;
  }
  int64_t bytes() const { return AlignedBytes(size() * 4); }

  // Copy activations to this order, and back.
  const float* Gather(const void* from, float* to) const {
    const auto* const x = static_cast<const float*>(from);
    ForEachRun([&](int64_t i, int64_t j) { std::copy_n(x + i, run, to + j); });
    return to;
  }
  void Scatter(const float* from, void* to) const {
    auto* const y = static_cast<float*>(to);
    ForEachRun(
        [&](int64_t i, int64_t j) { std::copy_n(from + j, run, y + i); });
  }

 private:
  // Calls f(offset in activations, offset in this order).
  template <typename F>
  void ForEachRun(const F& f) const {
    int64_t i = 0;
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t c = 0; c < shape.c; c += run) {
        for (int64_t h = 0; h < shape.h; ++h) {
          for (int64_t w = 0; w < shape.w; ++w, i += run) {
            f(i, (PixelsBefore(h, w) + n) * shape.c + c);
          }
        }
      }
    }
  }
};

// Saved: weights, a matrix [out, in] for each position in the kernel. Scratch:
// the gradients of the weights, in the same form; then x and y, or their
// gradients, in PixelOrder.
class FewPixelsPlan : public OperationPlan {
 public:
  // Throws dnnl::error.
  FewPixelsPlan(const PlanContext& context, const PlanRequest& request)
      : context_(context),
        name_(request.operation->name),
        op_(std::get<ConvolutionOp>(request.operation->kind)),
        in_(request.x.c),
        out_(request.output.c),
        x_{request.x, op_.stride, RunOf(context, request.x)},
        y_{request.output, 1, RunOf(context, request.output)} {
    using dnnl::memory;
    const auto weights = [&](memory::dims strides) {
      return onednn::Desc({out_, in_, op_.kernel, op_.kernel},
                          memory::data_type::f32, std::move(strides));
    };
    const int64_t k = op_.kernel;
    const int64_t place = in_ * out_;
    const onednn::Desc plain = weights({in_ * k * k, k * k, k, 1});
    const onednn::Desc matrices = weights({in_, 1, k * place, place});
    weights_ = Reorder(context.engine, plain, matrices);
    gradients_ = Reorder(context.engine, matrices, plain);
    weights_bytes_ = AlignedBytes(matrices);
    saved_bytes = weights_bytes_;
    algorithm_name = "products of matrices";
    scratch_bytes = weights_bytes_ + x_.bytes() + y_.bytes();
    for (int64_t at = 0; at < k * k; ++at) AddProducts(at);
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    const Space space = SpaceAt(buffers.scratch);
    const float* const x = x_.Gather(buffers.x, space.x);
    for (int64_t i = 0; i < y_.size(); i += out_) {
      if (op_.bias == kNoTensor) {
        std::fill_n(space.y + i, out_, 0.0f);
      } else {
        std::ranges::copy(context_.parameters->value(op_.bias), space.y + i);
      }
    }
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(name_, [&] {
      const Parameters& parameters = *context_.parameters;
      auto* const weights = static_cast<float*>(buffers.saved);
      weights_.Run(context_.stream, parameters.value(op_.weight).data(),
                   weights);
      for (const Product& p : products_) {
        Multiply({'N', x + p.x * in_, in_},
                 {'T', weights + p.place * in_ * out_, in_}, {p.rows, out_},
                 in_, 1, space.y + p.y * out_);
      }
    }));
    y_.Scatter(space.y, buffers.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady ready) override {
    const Space space = SpaceAt(buffers.scratch);
    const float* const x = x_.Gather(buffers.x, space.x);
    const float* const dy = y_.Gather(buffers.dy, space.y);
    LOCKSTEP_RETURN_IF_ERROR(
        CatchOnednn(name_, [&] { WeightGradients(x, dy, space); }));
    if (op_.bias != kNoTensor) {
      BiasGradient(dy);
      ready(op_.bias);
    }
    ready(op_.weight);
    if (buffers.dx == nullptr) return absl::OkStatus();
    std::fill_n(space.x, x_.size(), 0.0f);
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(name_, [&] {
      const auto* const weights = static_cast<const float*>(buffers.saved);
      for (const Product& p : products_) {
        Multiply({'N', dy + p.y * out_, out_},
                 {'N', weights + p.place * in_ * out_, in_}, {p.rows, in_},
                 out_, 1, space.x + p.x * in_);
      }
    }));
    x_.Scatter(space.x, buffers.dx);
    return absl::OkStatus();
  }

 private:
  static int64_t RunOf(const PlanContext& context, const Shape& shape) {
    return context.layout == Layout::kNchw16c ? kChannelBlock : shape.c;
  }

  struct Space {
    float* gradients;  // The gradients of the weights.
    float* x;
    float* y;
  };
  // Pixels [x, x + rows) of x, multiplied with one position in the kernel, are
  // added to [y, y + rows) of y.
  struct Product {
    int64_t place, x, y, rows;
    bool first;  // The first product of its place.
  };
  // A row-major matrix whose rows are `stride` values apart; transposed if `is`
  // is 'T'.
  struct Matrix {
    char is;
    const float* data;
    int64_t stride;
  };
  struct Size {
    int64_t rows, columns;
  };

  Space SpaceAt(void* scratch) const {
    void* const x = Offset(scratch, weights_bytes_);
    return {static_cast<float*>(scratch), static_cast<float*>(x),
            static_cast<float*>(Offset(x, x_.bytes()))};
  }

  void WeightGradients(const float* x, const float* dy, const Space& space) {
    float* const gradients = space.gradients;
    for (const int64_t place : unused_places_) {
      std::fill_n(gradients + place * in_ * out_, in_ * out_, 0.0f);
    }
    for (const Product& p : products_) {
      Multiply({'T', dy + p.y * out_, out_}, {'N', x + p.x * in_, in_},
               {out_, in_}, p.rows, p.first ? 0 : 1,
               gradients + p.place * in_ * out_);
    }
    gradients_.Run(context_.stream, gradients,
                   context_.parameters->gradient(op_.weight).data());
  }

  void BiasGradient(const float* dy) {
    const std::span<float> bias = context_.parameters->gradient(op_.bias);
    std::ranges::fill(bias, 0.0f);
    for (int64_t i = 0; i < y_.size(); i += out_) {
      for (int64_t c = 0; c < out_; ++c) bias[c] += dy[i + c];
    }
  }

  // Computes c = a b + beta c.
  static void Multiply(const Matrix& a, const Matrix& b, const Size& c_size,
                       int64_t k, float beta, float* c) {
    dnnl::error::wrap_c_api(
        static_cast<dnnl_status_t>(
            dnnl::sgemm(a.is, b.is, c_size.rows, c_size.columns, k, 1, a.data,
                        a.stride, b.data, b.stride, beta, c, c_size.columns)),
        "product of matrices");
  }

  // Adds the products of one position in the kernel. Rows of the image that are
  // contiguous in both x and y become one product.
  void AddProducts(int64_t place) {
    const int64_t stride = op_.stride;
    const int64_t above = place / op_.kernel - op_.padding;
    const int64_t left = place % op_.kernel - op_.padding;
    // The columns of y whose column of x exists.
    const int64_t begin = std::max<int64_t>(0, (stride - 1 - left) / stride);
    const int64_t end =
        std::min(y_.shape.w, (x_.shape.w - 1 - left + stride) / stride);
    const int64_t rows = (end - begin) * x_.shape.n;
    bool first = true;
    for (int64_t h = 0; h < y_.shape.h && rows > 0; ++h) {
      const int64_t from = h * stride + above;
      if (from < 0 || from >= x_.shape.h) continue;
      const int64_t x = x_.PixelsBefore(from, begin * stride + left);
      const int64_t y = y_.PixelsBefore(h, begin);
      if (!first && products_.back().x + products_.back().rows == x &&
          products_.back().y + products_.back().rows == y) {
        products_.back().rows += rows;
      } else {
        products_.push_back({place, x, y, rows, first});
      }
      first = false;
    }
    if (first) unused_places_.push_back(place);
  }

  PlanContext context_;
  const std::string name_;
  const ConvolutionOp op_;
  const int64_t in_, out_;
  const PixelOrder x_, y_;
  std::vector<Product> products_;
  std::vector<int64_t> unused_places_;  // Always outside the image.
  int64_t weights_bytes_ = 0;
  Reorder weights_, gradients_;
};

}  // namespace

bool UsesFewPixelsPlan(const PlanContext& context, const PlanRequest& request) {
  const auto& op = std::get<ConvolutionOp>(request.operation->kind);
  const Shape& y = request.output;
  // The input image of a network in kNchw16c may be stored plane by plane.
  const bool by_pixel =
      context.layout == Layout::kNhwc || request.operation->inputs[0] != 0;
  return by_pixel && context.type == DataType::kFloat32 && op.kernel > 1 &&
         !op.relu && y.h * y.w <= kFewPixels &&
         request.x.c * y.c >= kManyWeights;
}

PlanOr PlanFewPixels(const PlanContext& context, const PlanRequest& request) {
  const auto& op = std::get<ConvolutionOp>(request.operation->kind);
  std::vector<int> indices = {op.weight};
  if (op.bias != kNoTensor) indices.insert(indices.begin(), op.bias);
  return MakePlan(context, request, std::move(indices), [&] {
    return std::make_unique<FewPixelsPlan>(context, request);
  });
}

}  // namespace lockstep
