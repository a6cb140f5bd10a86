#include "models/cpu/layer_test_util.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/cpu/classifier.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

namespace lockstep {
namespace {

constexpr int64_t kGuard = 64;
constexpr float kGuardValue = 12345.0f;

// NaNs between two guard zones; the data is 64-byte aligned.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(int64_t size)
      : size_(size), buffer_(size + 2 * kGuard) {
    std::ranges::fill(buffer_.span(), kGuardValue);
    std::ranges::fill(span(), std::numeric_limits<float>::quiet_NaN());
  }

  float* data() { return buffer_.data() + kGuard; }
  std::span<float> span() { return {data(), static_cast<size_t>(size_)}; }
  std::vector<float> copy() { return {data(), data() + size_}; }

  bool intact() const {
    const std::span<const float> all = buffer_.span();
    const auto is_guard = [](float x) { return x == kGuardValue; };
    return std::ranges::all_of(all.first(kGuard), is_guard) &&
           std::ranges::all_of(all.last(kGuard), is_guard);
  }

 private:
  int64_t size_;
  AlignedBuffer buffer_;
};

}  // namespace

std::vector<float> Integers(int64_t size, int limit, uint32_t seed) {
  std::vector<float> out(size);
  uint32_t state = seed * 2654435761u + 12345u;
  for (float& x : out) {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes' generator.
    x = static_cast<float>(static_cast<int>((state >> 8) % (2 * limit + 1)) -
                           limit);
  }
  return out;
}

int64_t At(const Shape& shape, int64_t n, int64_t c, int64_t h, int64_t w) {
  return ((n * shape.h + h) * shape.w + w) * shape.c + c;
}

absl::StatusOr<LayerRun> RunLayer(const Layer& layer, Parameters& parameters,
                                  const Shape& input, bool input_gradient,
                                  Buffers* buffers) {
  Buffers none;
  SetComputeThreads(1);  // As a rank runs; more would spin on a busy machine.
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  CpuBatchNormKernels kernels;
  const LayerContext context{.engine = engine,
                             .stream = dnnl::stream(engine),
                             .parameters = &parameters,
                             .buffers = buffers == nullptr ? &none : buffers,
                             .batch_norm_kernels = &kernels};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<LayerPlan> plan,
                            layer.plan(context, input, input_gradient));
  LayerRun run;
  run.output = plan->output;
  const int64_t size = run.output.size();
  GuardedBuffer x(input.size()), y(size), dy(size), dx(input.size()),
      saved(plan->saved_size), temporary(plan->temporary_size);
  run.x = Integers(input.size(), kInputLimit, 1);
  run.dy = Integers(size, kOtherLimit, 2);
  std::ranges::copy(run.x, x.data());
  std::ranges::copy(run.dy, dy.data());
  LOCKSTEP_RETURN_IF_ERROR(plan->Forward({.x = x.data(),
                                          .y = y.data(),
                                          .saved = saved.data(),
                                          .temporary = temporary.data(),
                                          .training = true}));
  LOCKSTEP_RETURN_IF_ERROR(
      plan->Backward({.x = x.data(),
                      .y = y.data(),
                      .saved = saved.data(),
                      .dy = dy.data(),
                      .dx = input_gradient ? dx.data() : nullptr,
                      .temporary = temporary.data()},
                     [&](int index) { run.ready.push_back(index); }));
  for (const GuardedBuffer* buffer : {&x, &y, &dy, &dx, &saved, &temporary}) {
    if (!buffer->intact()) return absl::InternalError("a guard was written");
  }
  run.y = y.copy();
  if (input_gradient) run.dx = dx.copy();
  return run;
}

absl::Status CheckNear(std::span<const float> got, std::span<const double> want,
                       double tolerance) {
  if (got.size() != want.size()) {
    return absl::DataLossError(
        absl::StrCat("size ", got.size(), " in place of ", want.size()));
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (!(std::abs(got[i] - want[i]) <= tolerance)) {
      return absl::DataLossError(absl::StrCat("element ", i, " of ", got.size(),
                                              " is ", got[i], " in place of ",
                                              want[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
