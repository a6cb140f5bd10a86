#include "models/cpu/cpu_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/catch_bad_alloc.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/lane_model.h"
#include "models/cpu/onednn.h"
#include "models/cpu/plan.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/program/operation_plan.h"
#include "models/program/operation_times.h"
#include "models/program/program.h"
#include "models/program/step_memory.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

// The only call into the OpenMP runtime that oneDNN brings along. The function
// is declared here because <omp.h> is absent if the compiler's own OpenMP is
// not installed. oneDNN's runtime, which defines the function, is always there.
extern "C" void omp_set_num_threads(int count);

namespace lockstep {
namespace {

// The loss is computed in float64: that takes a thousandth of a step, and
// softmax - 1 cancels.

bool IsCorrect(std::span<const float> logits, int32_t label) {
  for (size_t k = 0; k < logits.size(); ++k) {
    // The comparisons are false if either side is a NaN.
    const bool below = static_cast<int32_t>(k) < label
                           ? logits[k] < logits[label]
                           : logits[k] <= logits[label];
    if (!below) return false;
  }
  return true;
}

// A sample's target: `label` with weight `share`, `other` with weight 1 -
// share.
struct Target {
  int32_t label;
  int32_t other;
  double share;
};

// Returns the loss of one sample. Overwrites `gradient` unless that is empty.
double SampleLoss(std::span<const float> logits, const Target& target,
                  double scale, std::span<float> gradient) {
  // Subtracting the highest keeps every exponential in (0, 1].
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - highest);
  const double log_sum = std::log(sum) + highest;
  double loss = log_sum - logits[target.label];
  if (target.share != 1) {
    loss = target.share * loss +
           (1 - target.share) * (log_sum - logits[target.other]);
  }
  for (size_t k = 0; k < gradient.size(); ++k) {
    double wanted = static_cast<int32_t>(k) == target.label ? target.share : 0;
    if (static_cast<int32_t>(k) == target.other) wanted += 1 - target.share;
    gradient[k] = static_cast<float>(
        scale * (std::exp(logits[k] - highest) / sum - wanted));
  }
  return loss;
}

// The program of one batch size, and what the input and sums of gradients need.
struct Step {
  Program program;
  // Converts the input from float32, channels last, if activations differ.
  std::optional<Reorder> input;
};

class NetworkOnCpu : public CpuReplica {
 public:
  NetworkOnCpu(Network network, const CpuReplicaOptions& options)
      : CpuReplica(std::move(network), options.seed),
        type_(options.type),
        convolution_(options.convolution),
        layout_(LayoutOf(CpuReplica::network(), type_, convolution_)),
        share_memory_(options.share_memory) {}

  absl::StatusOr<std::vector<std::string>> Algorithms(int64_t n) override {
    LOCKSTEP_ASSIGN_OR_RETURN(Step * step, Prepare(n, /*training=*/true));
    std::vector<std::string> algorithms;
    for (const auto& plan : step->program.plans())
      algorithms.push_back(plan->algorithm_name);
    return algorithms;
  }
  Layout layout() const override { return layout_; }

  int ConvertSyncBatchNorm(Communicator& group) override {
    const int count = network().Count<BatchNormOp>();
    if (count == 0) return 0;
    batch_norm_group_ = &group;
    steps_.clear();
    return count;
  }

  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckBatch(*this, batch));
    // Ranks of a group exchange messages even if a batch is empty.
    if (batch.labels.empty() && batch_norm_group_ == nullptr) {
      std::ranges::fill(parameters().gradients(), 0.0f);
      for (int i = parameters().count(); i-- > 0;) ready(i);
      return Metrics();
    }
    LOCKSTEP_ASSIGN_OR_RETURN(Step * step,
                              Prepare(SizeOf(batch), /*training=*/true));
    LOCKSTEP_RETURN_IF_ERROR(Forward(*step, batch, true));
    const Metrics metrics = Loss(batch, gradient_scale, *step, true);
    LOCKSTEP_RETURN_IF_ERROR(
        step->program.Backward(OperandsOf(*step, batch), ready, times()));
    return metrics;
  }

  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckBatch(*this, batch));
    if (batch.labels.empty()) return Metrics();
    LOCKSTEP_ASSIGN_OR_RETURN(Step * step,
                              Prepare(SizeOf(batch), /*training=*/false));
    LOCKSTEP_RETURN_IF_ERROR(Forward(*step, batch, false));
    return Loss(batch, /*gradient_scale=*/0, *step, false);
  }

 private:
  // A run uses few batch sizes: the batch, the last of an epoch, the
  // evaluation's.
  static constexpr size_t kMaxSteps = 8;

  static int64_t SizeOf(const Batch& batch) {
    return static_cast<int64_t>(batch.labels.size());
  }

  // Returns the plans for a batch of n, and makes memory() large enough for
  // them.
  absl::StatusOr<Step*> Prepare(int64_t n, bool training) {
    auto found = steps_.find(n);
    if (found == steps_.end()) {
      if (steps_.size() == kMaxSteps) steps_.clear();
      LOCKSTEP_ASSIGN_OR_RETURN(Step step, MakeStep(n));
      found = steps_.emplace(n, std::move(step)).first;
    }
    Step& step = found->second;
    const int64_t input =
        step.input.has_value()
            ? AlignedBytes(n * input_shape().size() * lockstep::SizeOf(type_))
            : 0;
    const int64_t logits = AlignedBytes(n * classes() * 4);
    const int64_t bytes = input + 2 * logits + step.program.bytes(training);
    LOCKSTEP_RETURN_IF_ERROR(Reserve(n, bytes));
    void* const start = memory();
    input_ = start;
    const auto count = static_cast<size_t>(n * classes());
    logits_ = {static_cast<float*>(Offset(start, input)), count};
    dlogits_ = {static_cast<float*>(Offset(start, input + logits)), count};
    base_ = Offset(start, input + 2 * logits);
    return &step;
  }

  // Checks that there is memory for oneDNN's generated code: oneDNN crashes if
  // it finds none. LeNet's plans take up to 25 MB. The plans of ResNet-18,
  // whose parameters take 45 MB, take 70 MB.
  absl::Status CheckMemoryForPlans() {
    const int64_t bytes =
        (int64_t{32} << 20) +
        5 * static_cast<int64_t>(parameters().values().size_bytes()) / 4;
    void* const space = ::operator new(bytes, std::nothrow);
    ::operator delete(space);
    if (space != nullptr) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory to plan a step, which needs about ", bytes >> 20, " MiB"));
  }

  absl::Status MakeContext() {
    LOCKSTEP_RETURN_IF_ERROR(CheckMemoryForPlans());
    if (!context_.has_value()) {
      LOCKSTEP_RETURN_IF_ERROR(CatchOnednn("engine", [&] {
        const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
        context_ = {.engine = engine,
                    .stream = dnnl::stream(engine),
                    .type = type_,
                    .layout = layout_,
                    .convolution = convolution_,
                    .parameters = &parameters(),
                    .buffers = &buffers(),
                    .batch_norm_kernels = &batch_norm_kernels_};
      }));
    }
    context_->batch_norm_group = batch_norm_group_;
    return absl::OkStatus();
  }

  absl::StatusOr<Step> MakeStep(int64_t n) {
    LOCKSTEP_RETURN_IF_ERROR(MakeContext());
    std::vector<std::unique_ptr<OperationPlan>> plans;
    for (const Network::Operation& operation : network().operations()) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          std::unique_ptr<OperationPlan> plan,
          CreatePlan(*context_, RequestFor(network(), operation, n)));
      plans.push_back(std::move(plan));
    }
    std::optional<Reorder> input;
    Program::AddGradient add;
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn("sums", [&] {
      input = InputConversion(n);
      add = MakeSums(n);
    }));
    return Step{.program = Program(network(), std::move(plans), n,
                                   lockstep::SizeOf(type_), share_memory_,
                                   std::move(add)),
                .input = std::move(input)};
  }

  // Returns the function that sums gradients, with a primitive for each value
  // that may need one. Throws dnnl::error.
  Program::AddGradient MakeSums(int64_t n) {
    auto sums =
        std::make_shared<std::vector<Sum>>(network().operations().size() + 1);
    for (const int value : network().ValuesWithSeveralUsers()) {
      if (n == 0) break;
      (*sums)[value] =
          Sum(context_->engine, n * network().ShapeOf(value).size(), type_);
    }
    return [this, n, sums](int value, void* gradient, const void* part) {
      if (n == 0) return absl::OkStatus();
      return CatchOnednn("a sum of gradients", [&] {
        (*sums)[value].Run(context_->stream, gradient, part, gradient);
      });
    };
  }

  // Returns the conversion of the input, if it needs one. Throws dnnl::error.
  std::optional<Reorder> InputConversion(int64_t n) const {
    if (n == 0) return std::nullopt;
    Shape input = input_shape();
    input.n = n;
    Reorder conversion(context_->engine,
                       Activations(input, DataType::kFloat32, Layout::kNhwc),
                       Activations(input, type_, context_->layout));
    if (conversion.is_identity()) return std::nullopt;
    return conversion;
  }

  Program::Operands OperandsOf(const Step& step, const Batch& batch) const {
    return {.memory = base_,
            .input = step.input.has_value() ? input_ : batch.images.data(),
            .batch = &batch};
  }

  absl::Status Forward(Step& step, const Batch& batch, bool training) {
    if (step.input.has_value()) {
      LOCKSTEP_RETURN_IF_ERROR(CatchOnednn("input", [&] {
        step.input->Run(context_->stream, batch.images.data(), input_);
      }));
    }
    return step.program.Forward(OperandsOf(step, batch), training, times());
  }

  // Returns the loss; in training, writes its gradient in the type of
  // activations.
  Metrics Loss(const Batch& batch, float gradient_scale, const Step& step,
               bool training) {
    void* const y = step.program.output(base_, training);
    void* const dy = training ? step.program.output_gradient(base_) : nullptr;
    if (type_ == DataType::kFloat32) {
      const std::span<float> logits(static_cast<float*>(y), logits_.size());
      const std::span<float> gradient(static_cast<float*>(dy),
                                      training ? logits.size() : 0);
      return SoftmaxCrossEntropy(logits, batch, classes(), gradient_scale,
                                 gradient);
    }
    const auto* const rounded = static_cast<const BFloat16*>(y);
    std::ranges::transform(rounded, rounded + logits_.size(), logits_.begin(),
                           [](BFloat16 x) { return ToFloat(x); });
    const Metrics metrics =
        SoftmaxCrossEntropy(logits_, batch, classes(), gradient_scale,
                            training ? dlogits_ : std::span<float>());
    if (training) {
      std::ranges::transform(dlogits_, static_cast<BFloat16*>(dy),
                             [](float x) { return ToBFloat16(x); });
    }
    return metrics;
  }

  const DataType type_;
  const ConvolutionAlgorithm convolution_;
  const Layout layout_;
  const bool share_memory_;
  Communicator* batch_norm_group_ = nullptr;
  CpuBatchNormKernels batch_norm_kernels_;
  std::optional<PlanContext> context_;
  std::map<int64_t, Step> steps_;  // By batch size.
  // Parts of memory(), of the step that runs.
  void* input_ = nullptr;     // The converted input, if any.
  std::span<float> logits_;   // float32 logits and their gradient: used if
  std::span<float> dlogits_;  // activations are of another type.
  void* base_ = nullptr;      // The program's memory.
};

}  // namespace

void SetComputeThreads(int count) { omp_set_num_threads(count); }

CpuReplica::CpuReplica(Network network, uint64_t seed)
    : network_(std::move(network)),
      parameters_(CreateParameters(network_, seed)),
      buffers_(CreateBuffers(network_)) {}

void CpuReplica::CollectTimes(OperationTimes* times) {
  times_ = times;
  if (times == nullptr) return;
  times->forward_seconds.assign(network_.operations().size(), 0);
  times->backward_seconds.assign(network_.operations().size(), 0);
}

absl::Status CpuReplica::Reserve(int64_t n, int64_t bytes) {
  if (workspace_bytes() >= bytes) return absl::OkStatus();
  memory_ = AlignedBuffer();  // Frees the old memory first.
  return CatchBadAlloc(
      [&] {
        memory_ = AlignedBuffer((bytes + 3) / 4);
        return absl::OkStatus();
      },
      absl::StrCat("no memory for a batch of ", n, ": it needs ", bytes >> 20,
                   " MiB of activations"));
}

OperationTimer CpuReplica::TimeForward(size_t operation, bool wanted) const {
  return OperationTimer(wanted && times_ != nullptr
                            ? &times_->forward_seconds[operation]
                            : nullptr);
}

OperationTimer CpuReplica::TimeBackward(size_t operation, bool wanted) const {
  return OperationTimer(wanted && times_ != nullptr
                            ? &times_->backward_seconds[operation]
                            : nullptr);
}

absl::Status CheckBatch(const Model& model, const Batch& batch) {
  const size_t n = batch.labels.size();
  const int64_t size = model.input_shape().size();
  if (batch.images.size() != n * size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the images have ", batch.images.size(), " floats; ", n,
                     " labels of ", size, " floats each need ", n * size));
  }
  for (const size_t values :
       {batch.other_labels.size(), batch.shares.size(), batch.samples.size()}) {
    if (values != 0 && values != n) {
      return absl::InvalidArgumentError(
          absl::StrCat(values, " values for a batch of ", n, " labels"));
    }
  }
  for (const std::span<const int32_t> labels :
       {batch.labels, batch.other_labels}) {
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] >= 0 && labels[i] < model.classes()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("label ", labels[i], " of sample ", i, " is not in [0, ",
                       model.classes(), ")"));
    }
  }
  return absl::OkStatus();
}

Metrics SoftmaxCrossEntropy(std::span<const float> logits, const Batch& batch,
                            int64_t classes, float gradient_scale,
                            std::span<float> gradient) {
  Metrics metrics;
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    const std::span<const float> row = logits.subspan(i * classes, classes);
    const Target target =
        batch.shares.empty()
            ? Target{batch.labels[i], batch.labels[i], 1}
            : Target{batch.labels[i], batch.other_labels[i], batch.shares[i]};
    if (IsCorrect(row, target.label)) ++metrics.correct;
    metrics.loss_sum += SampleLoss(
        row, target, gradient_scale,
        gradient.empty() ? gradient : gradient.subspan(i * classes, classes));
  }
  metrics.samples = static_cast<int64_t>(batch.labels.size());
  return metrics;
}

absl::StatusOr<std::unique_ptr<CpuReplica>> CreateCpuReplica(
    Network network, const CpuReplicaOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(network.status());
  LOCKSTEP_RETURN_IF_ERROR(CheckActivationType(options.type));
  LOCKSTEP_RETURN_IF_ERROR(CheckConvolutionAlgorithm(options.convolution));
  const Shape& output = network.output_shape();
  if (output.h != 1 || output.w != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(network.name(), ": ends in images of ", output.h, "x",
                     output.w, ", not in one value for each class"));
  }
  if (options.lanes && options.type == DataType::kFloat32 &&
      FitsLanes(network)) {
    return CreateLaneReplica(std::move(network), options.seed);
  }
  return std::make_unique<NetworkOnCpu>(std::move(network), options);
}

absl::StatusOr<std::unique_ptr<Model>> CreateModel(absl::string_view spec,
                                                   uint64_t seed,
                                                   const NetworkInput& input) {
  LOCKSTEP_ASSIGN_OR_RETURN(Network network, CreateNetwork(spec, input));
  return CreateCpuReplica(std::move(network), {.seed = seed});
}

}  // namespace lockstep
