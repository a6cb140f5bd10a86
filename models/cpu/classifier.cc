#include "models/cpu/classifier.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/cpu/layers.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

// The one call into the OpenMP runtime that oneDNN brings along. Declared here
// because <omp.h> is absent where the compiler's own OpenMP is
// not installed, while oneDNN's runtime, which has the function, always is.
extern "C" void omp_set_num_threads(int count);

namespace lockstep {
namespace {

// The loss is computed in float64: that is a thousandth of a step, and
// softmax - 1 cancels.

bool IsCorrect(std::span<const float> logits, int32_t label) {
  for (size_t k = 0; k < logits.size(); ++k) {
    // Written so that a NaN on either side fails.
    const bool below = static_cast<int32_t>(k) < label
                           ? logits[k] < logits[label]
                           : logits[k] <= logits[label];
    if (!below) return false;
  }
  return true;
}

// The loss of one sample; its gradient unless that is empty.
double SampleLoss(std::span<const float> logits, int32_t label, double scale,
                  std::span<float> gradient) {
  // Subtracting the highest keeps every exponential in (0, 1].
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - highest);
  const double log_sum = std::log(sum) + highest;
  const double loss = log_sum - logits[label];
  for (size_t k = 0; k < gradient.size(); ++k) {
    const double onehot = static_cast<int32_t>(k) == label ? 1 : 0;
    gradient[k] = static_cast<float>(
        scale * (std::exp(logits[k] - highest) / sum - onehot));
  }
  return loss;
}

// Owns a replica's memory and plans.
class Classifier : public Model {
 public:
  Classifier(const Shape& sample, int64_t classes, Parameters parameters,
             Buffers buffers, Layer network)
      : sample_(sample),
        classes_(classes),
        parameters_(std::move(parameters)),
        buffers_(std::move(buffers)),
        network_(std::move(network)) {}

  Parameters& parameters() override { return parameters_; }
  Buffers& buffers() override { return buffers_; }

  int ConvertSyncBatchNorm(Communicator& group) override {
    const int count = network_.batch_norm_count;
    if (count == 0) return 0;
    batch_norm_group_ = &group;
    plans_.clear();
    return count;
  }

  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    LOCKSTEP_RETURN_IF_ERROR(Check(batch));
    // Ranks of a group exchange messages also for an empty batch.
    if (batch.labels.empty() && batch_norm_group_ == nullptr) {
      std::ranges::fill(parameters_.gradients(), 0.0f);
      for (int i = parameters_.count(); i-- > 0;) ready(i);
      return Metrics();
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Space space, Prepare(batch));
    LOCKSTEP_RETURN_IF_ERROR(Forward(batch, space, /*training=*/true));
    const Metrics metrics = SoftmaxCrossEntropy(
        space.logits, batch.labels, classes_, gradient_scale, space.gradient);
    LOCKSTEP_RETURN_IF_ERROR(
        space.plan->Backward({.x = batch.images.data(),
                              .y = space.logits.data(),
                              .saved = space.saved,
                              .dy = space.gradient.data(),
                              .dx = nullptr,
                              .temporary = space.temporary},
                             ready));
    return metrics;
  }

  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    LOCKSTEP_RETURN_IF_ERROR(Check(batch));
    if (batch.labels.empty()) return Metrics();
    LOCKSTEP_ASSIGN_OR_RETURN(const Space space, Prepare(batch));
    LOCKSTEP_RETURN_IF_ERROR(Forward(batch, space, /*training=*/false));
    return SoftmaxCrossEntropy(space.logits, batch.labels, classes_,
                               /*gradient_scale=*/0, /*gradient=*/{});
  }

 private:
  // A run meets a few sizes: the batch, the last of an epoch, the evaluation's.
  static constexpr size_t kMaxPlans = 8;

  // A step's plan, and its parts of memory_.
  struct Space {
    LayerPlan* plan;
    std::span<float> logits;
    std::span<float> gradient;  // Of the logits.
    float* saved;
    float* temporary;
  };

  absl::Status Check(const Batch& batch) const {
    const size_t want = batch.labels.size() * sample_.size();
    if (batch.images.size() != want) {
      return absl::InvalidArgumentError(absl::StrCat(
          batch.images.size(), " floats of images for ", batch.labels.size(),
          " labels: ", sample_.size(), " a label would be ", want));
    }
    for (size_t i = 0; i < batch.labels.size(); ++i) {
      if (batch.labels[i] < 0 || batch.labels[i] >= classes_) {
        return absl::InvalidArgumentError(
            absl::StrCat("label ", batch.labels[i], " of sample ", i,
                         " is not in [0, ", classes_, ")"));
      }
    }
    return absl::OkStatus();
  }

  // The plan for the batch's size, with memory_ large enough for it.
  absl::StatusOr<Space> Prepare(const Batch& batch) {
    const int64_t n = static_cast<int64_t>(batch.labels.size());
    auto found = plans_.find(n);
    if (found == plans_.end()) {
      LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<LayerPlan> plan, MakePlan(n));
      if (plans_.size() == kMaxPlans) plans_.clear();
      found = plans_.emplace(n, std::move(plan)).first;
    }
    LayerPlan* plan = found->second.get();
    const int64_t logits = AlignedSize(plan->output.size());
    const int64_t saved = AlignedSize(plan->saved_size);
    const int64_t size = logits * 2 + saved + AlignedSize(plan->temporary_size);
    if (memory_.size() < size) {
      LOCKSTEP_RETURN_IF_ERROR(Grow(n, size));
    }
    float* const start = memory_.data();
    const auto count = static_cast<size_t>(plan->output.size());
    return Space{.plan = plan,
                 .logits = {start, count},
                 .gradient = {start + logits, count},
                 .saved = start + 2 * logits,
                 .temporary = start + 2 * logits + saved};
  }

  absl::Status Grow(int64_t n, int64_t size) {
    memory_ = AlignedBuffer();  // Frees the old before it takes the new.
    try {
      memory_ = AlignedBuffer(size);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for a batch of ", n, ": it needs ",
                       (size * sizeof(float)) >> 20, " MiB of activations"));
    }
    return absl::OkStatus();
  }

  // oneDNN crashes where the code that it makes for a primitive finds no
  // memory, so looks first whether there is enough: LeNet's plans take up to
  // 25 MB, those of ResNet-18, whose parameters have 45 MB, 70 MB.
  absl::Status CheckMemoryForPlan() {
    const int64_t bytes =
        (int64_t{32} << 20) +
        5 * static_cast<int64_t>(parameters_.values().size_bytes()) / 4;
    void* const space = ::operator new(bytes, std::nothrow);
    ::operator delete(space);
    if (space != nullptr) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory to plan a step: it needs about ", bytes >> 20, " MiB"));
  }

  absl::StatusOr<std::unique_ptr<LayerPlan>> MakePlan(int64_t n) {
    LOCKSTEP_RETURN_IF_ERROR(CheckMemoryForPlan());
    if (!context_.has_value()) {
      LOCKSTEP_RETURN_IF_ERROR(CatchOnednn("engine", [&] {
        const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
        context_ = {.engine = engine,
                    .stream = dnnl::stream(engine),
                    .parameters = &parameters_,
                    .buffers = &buffers_,
                    .batch_norm_kernels = &batch_norm_kernels_};
      }));
    }
    context_->batch_norm_group = batch_norm_group_;
    Shape input = sample_;
    input.n = n;
    LOCKSTEP_ASSIGN_OR_RETURN(
        std::unique_ptr<LayerPlan> plan,
        network_.plan(*context_, input, /*input_gradient=*/false));
    const Shape output = plan->output;
    if (output != Shape{.n = n, .c = classes_}) {
      return absl::InternalError(
          absl::StrCat("the network gives ", output.c * output.h * output.w,
                       " logits a sample for ", classes_, " classes"));
    }
    return plan;
  }

  static absl::Status Forward(const Batch& batch, const Space& space,
                              bool training) {
    return space.plan->Forward({.x = batch.images.data(),
                                .y = space.logits.data(),
                                .saved = space.saved,
                                .temporary = space.temporary,
                                .training = training});
  }

  const Shape sample_;
  const int64_t classes_;
  Parameters parameters_;
  Buffers buffers_;
  Communicator* batch_norm_group_ = nullptr;
  CpuBatchNormKernels batch_norm_kernels_;
  const Layer network_;
  std::optional<LayerContext> context_;
  std::map<int64_t, std::unique_ptr<LayerPlan>> plans_;  // By batch size.
  AlignedBuffer memory_;
};

}  // namespace

void SetComputeThreads(int count) { omp_set_num_threads(count); }

Metrics SoftmaxCrossEntropy(std::span<const float> logits,
                            std::span<const int32_t> labels, int64_t classes,
                            float gradient_scale, std::span<float> gradient) {
  Metrics metrics;
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::span<const float> row = logits.subspan(i * classes, classes);
    if (IsCorrect(row, labels[i])) ++metrics.correct;
    metrics.loss_sum += SampleLoss(
        row, labels[i], gradient_scale,
        gradient.empty() ? gradient : gradient.subspan(i * classes, classes));
  }
  metrics.samples = static_cast<int64_t>(labels.size());
  return metrics;
}

std::unique_ptr<Model> CreateClassifier(const Shape& sample, int64_t classes,
                                        Parameters parameters, Buffers buffers,
                                        Layer network) {
  return std::make_unique<Classifier>(sample, classes, std::move(parameters),
                                      std::move(buffers), std::move(network));
}

}  // namespace lockstep
