#include "syncbn/cpu/onednn_batch_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/elementwise.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {
namespace {

using dnnl::normalization_flags;
using dnnl::prop_kind;

dnnl::primitive_attr CallersScratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// Hide the difference between oneDNN 2 and oneDNN 3, which make primitive
// descriptors differently. These two functions throw dnnl::error.
//
// `data` describes x, y and their gradients. Scratch space comes from the
// caller. A backward pass has the same flags as its forward pass. Its kind is
// backward, with the gradients of scale and shift, or backward_data.
dnnl::batch_normalization_forward::primitive_desc BatchNormForward(
    const dnnl::engine& engine, prop_kind kind, const dnnl::memory::desc& data,
    float epsilon, normalization_flags flags) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, kind, data, data, epsilon, flags, CallersScratch()};
#else
  return {{kind, data, epsilon, flags}, CallersScratch(), engine};
#endif
}

dnnl::batch_normalization_backward::primitive_desc BatchNormBackward(
    const dnnl::engine& engine, prop_kind kind, const dnnl::memory::desc& data,
    float epsilon, normalization_flags flags) {
  const auto forward = BatchNormForward(engine, prop_kind::forward_training,
                                        data, epsilon, flags);
#if DNNL_VERSION_MAJOR >= 3
  return {engine,          kind, data, data, data, epsilon, flags, forward,
          CallersScratch()};
#else
  return {
      {kind, data, data, epsilon, flags}, CallersScratch(), engine, forward};
#endif
}

constexpr int64_t kFloat = sizeof(float);

// Calls `body` and turns dnnl::error into a status.
absl::Status CatchOnednn(DataType type,
                         absl::FunctionRef<absl::Status()> body) {
  try {
    return body();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) {
      return absl::UnimplementedError(
          absl::StrCat("batch norm: oneDNN does not support ", Name(type),
                       " on this machine"));
    }
    return absl::InternalError(
        absl::StrCat("batch norm: oneDNN: ", error.what(), " (status ",
                     static_cast<int>(error.status), ")"));
  }
}

absl::Status CheckType(DataType type) {
  if (type == DataType::kFloat32 || type == DataType::kBFloat16) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat("batch norm: oneDNN does not support ", Name(type)));
}

dnnl::memory::format_tag FormatOf(Layout layout) {
  using dnnl::memory;
  switch (layout) {
    case Layout::kNchw:
      return memory::format_tag::nchw;
    case Layout::kNhwc:
      return memory::format_tag::nhwc;
    case Layout::kNchw16c:
      return memory::format_tag::nChw16c;
  }
  return memory::format_tag::undef;
}

dnnl::memory::desc Describe(const ActivationShape& shape, DataType type) {
  using dnnl::memory;
  return {{shape.n, shape.c, 1, shape.hw},
          type == DataType::kBFloat16 ? memory::data_type::bf16
                                      : memory::data_type::f32,
          FormatOf(shape.layout)};
}

normalization_flags AffineFlags(bool affine) {
  return affine
             ? normalization_flags::use_scale | normalization_flags::use_shift
             : normalization_flags::none;
}

bool AreFinite(const ConstBuffer& floats) {
  const auto* const values = static_cast<const float*>(floats.data);
  return std::all_of(values, values + floats.count,
                     [](float value) { return std::isfinite(value); });
}

}  // namespace

OnednnBatchNorm::OnednnBatchNorm(const BatchNormOptions& options)
    : options_(options),
      engine_(dnnl::engine::kind::cpu, 0),
      stream_(engine_) {}

absl::StatusOr<std::unique_ptr<OnednnBatchNorm>> OnednnBatchNorm::Create(
    const BatchNormOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBatchNormOptions(options));
  std::unique_ptr<OnednnBatchNorm> layer;
  LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(DataType::kFloat32, [&] {
    layer.reset(new OnednnBatchNorm(options));
    return absl::OkStatus();
  }));
  return layer;
}

int64_t OnednnBatchNorm::SavedBytes(DataType type) const {
  return RecordOf(options_.channels, type).size_bytes();
}

absl::Status OnednnBatchNorm::Forward(const ForwardBuffers& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(CheckForwards(options_, buffers));
  LOCKSTEP_RETURN_IF_ERROR(CheckType(buffers.x.type));
  const bool own = buffers.training || !options_.track_running_stats;
  if (buffers.shape.values_per_channel() == 1 && own &&
      options_.semantics.refuses_one_value) {
    return OneValueError();
  }
  return CatchOnednn(buffers.x.type, [&] {
    return own ? ForwardBatch(buffers) : ForwardRunning(buffers);
  });
}

absl::StatusOr<Buffer> OnednnBatchNorm::ChooseNormalBuffer(
    const ForwardBuffers& buffers) {
  Buffer normal = buffers.y;
  if (buffers.residual.count > 0 && buffers.residual.data == buffers.y.data) {
    LOCKSTEP_ASSIGN_OR_RETURN(normal.data,
                              normal_.Reserve(normal.size_bytes()));
  }
  return normal;
}

absl::Status OnednnBatchNorm::ForwardRunning(const ForwardBuffers& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(kernels_.UseRunning(
      {RecordOf(options_.channels, buffers.x.type), buffers.running,
       options_.epsilon, buffers.saved.bytes()}));
  if (buffers.shape.n == 0) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const Buffer normal, ChooseNormalBuffer(buffers));
  LOCKSTEP_RETURN_IF_ERROR(
      Normalize(buffers, normal, prop_kind::forward_inference,
                normalization_flags::use_global_stats,
                buffers.running.mean.data, buffers.running.variance.data));
  AddAndRelu(normal, buffers.residual, buffers.relu, buffers.y);
  return absl::OkStatus();
}

absl::Status OnednnBatchNorm::ForwardBatch(const ForwardBuffers& buffers) {
  const int64_t channels = options_.channels;
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const memory,
                            statistics_.Reserve(2 * channels * kFloat));
  float* const mean = reinterpret_cast<float*>(memory);
  float* const variance = mean + channels;
  std::fill_n(mean, 2 * channels, 0.0f);
  if (buffers.shape.n > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Buffer normal, ChooseNormalBuffer(buffers));
    bool fused = buffers.relu && buffers.residual.count == 0 &&
                 buffers.x.data != buffers.y.data;
    const auto normalize = [&] {
      return Normalize(buffers, normal, prop_kind::forward_training,
                       fused ? normalization_flags::fuse_norm_relu
                             : normalization_flags::none,
                       mean, variance);
    };
    LOCKSTEP_RETURN_IF_ERROR(normalize());
    const bool finite = AreFinite({mean, 2 * channels, DataType::kFloat32}) &&
                        AreFinite(buffers.weight) && AreFinite(buffers.bias);
    if (fused && !finite) {
      fused = false;
      LOCKSTEP_RETURN_IF_ERROR(normalize());
    }
    AddAndRelu(normal, buffers.residual, buffers.relu && !fused, buffers.y);
  }
  return SaveBatch(buffers, mean, variance);
}

absl::Status OnednnBatchNorm::Normalize(const ForwardBuffers& buffers,
                                        const Buffer& normal, prop_kind kind,
                                        normalization_flags flags,
                                        const void* mean,
                                        const void* variance) {
  const Plan& plan = PlanFor(buffers.shape, buffers.x.type, kind,
                             AffineFlags(options_.affine) | flags);
  return Execute(plan, {{DNNL_ARG_SRC, Activations(plan, buffers.x.data)},
                        {DNNL_ARG_DST, Activations(plan, normal.data)},
                        {DNNL_ARG_MEAN, Vector(mean)},
                        {DNNL_ARG_VARIANCE, Vector(variance)},
                        {DNNL_ARG_SCALE, Vector(buffers.weight.data)},
                        {DNNL_ARG_SHIFT, Vector(buffers.bias.data)}});
}

absl::Status OnednnBatchNorm::SaveBatch(const ForwardBuffers& buffers,
                                        const float* mean,
                                        const float* variance) {
  const StatisticsRecord layout = RecordOf(options_.channels, buffers.x.type);
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const record,
                            record_.Reserve(layout.size_bytes()));
  const int64_t count = buffers.shape.values_per_channel();
  layout.Start(record, count);
  std::copy_n(mean, layout.channels, layout.Mean<float>(record));
  float* const m2 = layout.Second<float>(record);
  for (int64_t c = 0; c < layout.channels; ++c) {
    m2[c] =
        static_cast<float>(double{variance[c]} * static_cast<double>(count));
  }
  const RunningStatistics& running = buffers.running;
  LOCKSTEP_RETURN_IF_ERROR(kernels_.Merge({layout, record, /*ranks=*/1,
                                           MergeOptionsFor(options_, running),
                                           running, buffers.saved.bytes()}));
  return CountBatch(options_, count, running);
}

absl::Status OnednnBatchNorm::Backward(
    const BackwardBuffers& buffers, absl::FunctionRef<void()> gradients_ready) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBackwards(options_, buffers));
  LOCKSTEP_RETURN_IF_ERROR(CheckType(buffers.x.type));
  if (buffers.shape.n == 0) {
    for (const Buffer& buffer : {buffers.dweight, buffers.dbias}) {
      std::fill_n(static_cast<float*>(buffer.data), buffer.count, 0.0f);
    }
    gradients_ready();
    return absl::OkStatus();
  }
  ConstBuffer g = buffers.dy;
  if (buffers.relu) {
    const bool wanted = buffers.dresidual.count > 0;
    const Buffer masked = wanted ? buffers.dresidual : buffers.dx;
    MaskByRelu(buffers.y, buffers.dy, masked);
    g = masked;
  } else if (buffers.dresidual.count > 0 &&
             buffers.dresidual.data != buffers.dy.data) {
    std::memcpy(buffers.dresidual.data, buffers.dy.data,
                static_cast<size_t>(buffers.dy.size_bytes()));
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CatchOnednn(buffers.x.type, [&] { return RunBackward(buffers, g); }));
  gradients_ready();
  return absl::OkStatus();
}

absl::Status OnednnBatchNorm::RunBackward(const BackwardBuffers& buffers,
                                          const ConstBuffer& g) {
  const StatisticsRecord layout = RecordOf(options_.channels, buffers.x.type);
  const std::byte* const saved = buffers.saved.bytes();
  const int64_t count = StatisticsRecord::Count(saved);
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const memory,
                            statistics_.Reserve(layout.channels * kFloat));
  float* const variance = reinterpret_cast<float*>(memory);
  const float* const inverse = layout.Second<float>(saved);
  for (int64_t c = 0; c < layout.channels; ++c) {
    variance[c] = static_cast<float>(1 / (double{inverse[c]} * inverse[c]));
  }
  normalization_flags flags = AffineFlags(options_.affine);
  if (count == 0) flags |= normalization_flags::use_global_stats;
  const Plan& plan = PlanFor(
      buffers.shape, buffers.x.type,
      options_.affine ? prop_kind::backward : prop_kind::backward_data, flags);
  return Execute(plan, {{DNNL_ARG_SRC, Activations(plan, buffers.x.data)},
                        {DNNL_ARG_DIFF_DST, Activations(plan, g.data)},
                        {DNNL_ARG_DIFF_SRC, Activations(plan, buffers.dx.data)},
                        {DNNL_ARG_MEAN, Vector(layout.Mean<float>(saved))},
                        {DNNL_ARG_VARIANCE, Vector(variance)},
                        {DNNL_ARG_SCALE, Vector(buffers.weight.data)},
                        // Not read, but oneDNN 2 requires this argument.
                        {DNNL_ARG_SHIFT, Vector(buffers.weight.data)},
                        {DNNL_ARG_DIFF_SCALE, Vector(buffers.dweight.data)},
                        {DNNL_ARG_DIFF_SHIFT, Vector(buffers.dbias.data)}});
}

const OnednnBatchNorm::Plan& OnednnBatchNorm::PlanFor(
    const ActivationShape& shape, DataType type, prop_kind kind,
    normalization_flags flags) {
  for (const Plan& plan : plans_) {
    if (plan.shape == shape && plan.type == type && plan.kind == kind &&
        plan.flags == flags) {
      return plan;
    }
  }
  Plan plan = {.shape = shape,
               .type = type,
               .kind = kind,
               .flags = flags,
               .data = Describe(shape, type)};
  if (kind == prop_kind::backward || kind == prop_kind::backward_data) {
    // The saved deviation already includes the layer's epsilon.
    const auto desc = BatchNormBackward(engine_, kind, plan.data,
                                        /*epsilon=*/0, flags);
    plan.primitive = dnnl::batch_normalization_backward(desc);
    plan.scratchpad = desc.scratchpad_desc();
  } else {
    const auto desc = BatchNormForward(
        engine_, kind, plan.data, static_cast<float>(options_.epsilon), flags);
    plan.primitive = dnnl::batch_normalization_forward(desc);
    plan.scratchpad = desc.scratchpad_desc();
    plan.has_workspace = (flags & normalization_flags::fuse_norm_relu) ==
                         normalization_flags::fuse_norm_relu;
    if (plan.has_workspace) plan.workspace = desc.workspace_desc();
  }
  plans_.push_back(plan);
  return plans_.back();
}

absl::Status OnednnBatchNorm::Execute(
    const Plan& plan, std::unordered_map<int, dnnl::memory> arguments) {
  const int64_t scratchpad =
      (static_cast<int64_t>(plan.scratchpad.get_size()) + 63) / 64 * 64;
  const int64_t workspace =
      plan.has_workspace ? static_cast<int64_t>(plan.workspace.get_size()) : 0;
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const memory,
                            work_.Reserve(scratchpad + workspace));
  arguments.insert_or_assign(DNNL_ARG_SCRATCHPAD,
                             dnnl::memory(plan.scratchpad, engine_, memory));
  if (plan.has_workspace) {
    arguments.insert_or_assign(
        DNNL_ARG_WORKSPACE,
        dnnl::memory(plan.workspace, engine_, memory + scratchpad));
  }
  if (!options_.affine) {
    for (int argument : {DNNL_ARG_SCALE, DNNL_ARG_SHIFT, DNNL_ARG_DIFF_SCALE,
                         DNNL_ARG_DIFF_SHIFT}) {
      arguments.erase(argument);
    }
  }
  plan.primitive.execute(stream_, arguments);
  stream_.wait();
  return absl::OkStatus();
}

dnnl::memory OnednnBatchNorm::Activations(const Plan& plan, const void* data) {
  return dnnl::memory(plan.data, engine_, const_cast<void*>(data));
}

dnnl::memory OnednnBatchNorm::Vector(const void* data) {
  using dnnl::memory;
  return memory(
      {{options_.channels}, memory::data_type::f32, memory::format_tag::x},
      engine_, const_cast<void*>(data));
}

}  // namespace lockstep
