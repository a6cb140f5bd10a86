// Calls a layer with guarded memory, which shows what the layer writes.
#include "conformance/syncbn/layer_run.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/rank_bytes.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/solved_problem.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep::conformance {
namespace {

constexpr size_t kGuardBytes = 64;
constexpr char kGuard = '\x5a';

using HostFactory = std::function<std::shared_ptr<void>(size_t bytes)>;

std::string Complaint(BatchNormCheck check, const std::string& what) {
  return absl::StrCat(check.name(), ": ", what);
}

// Elements between two guards.
class GuardedBuffer {
 public:
  // `offset`: bytes beyond an address that is aligned to 64.
  GuardedBuffer(const HostFactory& allocate, DataType type,
                absl::string_view bytes, size_t offset)
      : type_(type),
        first_(bytes),
        offset_(kGuardBytes + offset),
        total_(offset_ + bytes.size() + kGuardBytes),
        memory_(std::static_pointer_cast<char>(allocate(total_))) {
    std::memset(memory_.get(), kGuard, total_);
    if (!bytes.empty()) std::memcpy(begin(), bytes.data(), bytes.size());
  }

  Buffer buffer() const {
    return Buffer(begin(), std::ssize(first_) / SizeOf(type_), type_);
  }
  std::string bytes() const { return std::string(begin(), first_.size()); }
  bool IsUntouched() const {
    return absl::string_view(begin(), first_.size()) == first_;
  }
  bool GuardsHold() const {
    for (size_t i = 0; i < total_; ++i) {
      if (i == offset_) i += first_.size();
      if (memory_.get()[i] != kGuard) return false;
    }
    return true;
  }

 private:
  char* begin() const { return memory_.get() + offset_; }

  DataType type_;
  std::string first_;  // The initial contents.
  size_t offset_;
  size_t total_;
  std::shared_ptr<char> memory_;
};

// All memory of one step on one rank.
class StepMemory {
 public:
  StepMemory(const HostFactory& allocate, const SolvedProblem& solved,
             const BatchNormVariant& variant, int step, int rank,
             int64_t saved_bytes)
      : shape_(solved.ShapeOf(step, rank, variant.layout)),
        training_(IsTraining(step)),
        relu_(HasRelu(solved.problem.fused)),
        in_place_(solved.problem.fused == Fused::kInPlace) {
    const auto add = [&](DataType type, const std::string& bytes) {
      const int64_t offset = step == 1 ? SizeOf(type) : 0;
      parts_.emplace_back(allocate, type, bytes, static_cast<size_t>(offset));
    };
    const auto unwritten = [](int64_t bytes) {
      return std::string(static_cast<size_t>(bytes), kUnwritten);
    };
    const DataType type = solved.problem.type;
    const EncodedBatch& in =
        solved.steps[static_cast<size_t>(step)].InputsOf(variant.layout, rank);
    for (const std::string& bytes : {in.x, in.residual, in.dy}) {
      add(type, bytes);
    }
    for (const bool wanted :
         {!in_place_, !in_place_, HasResidual(solved.problem.fused)}) {
      add(type, unwritten(wanted ? shape_.size() * SizeOf(type) : 0));
    }
    const DataType parameters = solved.statistics_type;
    const bool affine = solved.problem.affine;
    for (const auto& values : {solved.layer.weight, solved.layer.bias}) {
      add(parameters, affine ? Encode(parameters, values) : "");
    }
    for (int gradient = 0; gradient < 2; ++gradient) {
      add(parameters, unwritten(affine ? shape_.c * SizeOf(parameters) : 0));
    }
    parts_.emplace_back(allocate, DataType::kUInt8, unwritten(saved_bytes), 0);
  }

  BatchNorm::ForwardBuffers ForwardBuffers(
      const RunningStatistics& running) const {
    return {.shape = shape_,
            .training = training_,
            .relu = relu_,
            .x = Of(kX),
            .residual = Of(kResidual),
            .weight = Of(kWeight),
            .bias = Of(kBias),
            .running = running,
            .y = Of(y()),
            .saved = Of(kSaved)};
  }
  BatchNorm::BackwardBuffers BackwardBuffers() const {
    return {.shape = shape_,
            .training = training_,
            .relu = relu_,
            .x = Of(kX),
            .y = Of(y()),
            .dy = Of(kDy),
            .weight = Of(kWeight),
            .saved = Of(kSaved),
            .dweight = Of(kDweight),
            .dbias = Of(kDbias),
            .dx = Of(dx()),
            .dresidual = Of(kDresidual)};
  }

  std::string Gradients() const {
    return parts_[kDweight].bytes() + parts_[kDbias].bytes();
  }

  // Returns the first buffer that was written although it must not be.
  std::string FindForbiddenWrite() const {
    for (const Part input : {kX, kResidual, kDy, kWeight, kBias}) {
      if (in_place_ && (input == kResidual || input == kDy)) continue;
      if (parts_[input].IsUntouched()) continue;
      return Complaint("Untouched",
                       absl::StrCat(kNames[input], " has changed"));
    }
    for (size_t part = 0; part < parts_.size(); ++part) {
      if (parts_[part].GuardsHold()) continue;
      return Complaint("Untouched", absl::StrCat("bytes beside ", kNames[part],
                                                 " have changed"));
    }
    return "";
  }

  void MoveTo(RankOutputs& out) const {
    out.y = parts_[y()].bytes();
    out.dx = parts_[dx()].bytes();
    out.dresidual = parts_[kDresidual].bytes();
    out.dweight = parts_[kDweight].bytes();
    out.dbias = parts_[kDbias].bytes();
  }

 private:
  enum Part : size_t {
    kX,
    kResidual,
    kDy,
    kY,
    kDx,
    kDresidual,
    kWeight,
    kBias,
    kDweight,
    kDbias,
    kSaved
  };
  static constexpr const char* kNames[] = {
      "x",          "the residual", "dy",      "y",     "dx",   "dresidual",
      "the weight", "the bias",     "dweight", "dbias", "saved"};

  Buffer Of(Part part) const { return parts_[part].buffer(); }
  Part y() const { return in_place_ ? kResidual : kY; }
  Part dx() const { return in_place_ ? kDy : kDx; }

  const ActivationShape shape_;
  const bool training_, relu_, in_place_;
  std::vector<GuardedBuffer> parts_;  // Indexed by Part.
};

// The running statistics of one rank's layer.
struct RunningMemory {
  RunningMemory(const HostFactory& allocate, const SolvedProblem& solved,
                std::span<const double> mean, std::span<const double> variance,
                bool tracked)
      : mean(allocate, solved.statistics_type,
             tracked ? Encode(solved.statistics_type, mean) : "", 0),
        variance(allocate, solved.statistics_type,
                 tracked ? Encode(solved.statistics_type, variance) : "", 0),
        tracked(tracked) {}

  RunningStatistics view() {
    if (!tracked) return {};
    return {mean.buffer(), variance.buffer(), &batches};
  }
  bool GuardsHold() const { return mean.GuardsHold() && variance.GuardsHold(); }
  void MoveTo(RankOutputs& out) const {
    out.running_mean = mean.bytes();
    out.running_variance = variance.bytes();
    out.batches = batches;
  }

  GuardedBuffer mean;
  GuardedBuffer variance;
  int64_t batches = 0;
  bool tracked;
};

RankOutputs RunStep(StepMemory& memory, RunningMemory& running,
                    BatchNorm& layer) {
  RankOutputs out;
  int calls = 0;
  std::string when_ready;
  out.status = layer.Forward(memory.ForwardBuffers(running.view()));
  if (out.status.ok()) {
    out.status = layer.Backward(memory.BackwardBuffers(), [&] {
      ++calls;
      when_ready = memory.Gradients();
    });
  }
  memory.MoveTo(out);
  running.MoveTo(out);
  out.complaint = memory.FindForbiddenWrite();
  if (!running.GuardsHold()) {
    out.complaint =
        Complaint("Untouched", "bytes beside the running statistics changed");
  }
  if (!out.complaint.empty() || !out.status.ok()) return out;
  if (calls != 1) {
    out.complaint = Complaint(
        "Ready", absl::StrCat("gradients_ready was called ", calls, " times"));
  } else if (when_ready != memory.Gradients()) {
    out.complaint =
        Complaint("Ready", "dweight or dbias changed after gradients_ready");
  }
  return out;
}

// Passes the contents of a run to a RankBytesWriter or RankBytesReader.
template <typename Bytes, typename Run>
void PassRun(Bytes& bytes, Run& run) {
  for (auto& step : run) {
    for (const auto& [name, field] : kOutputFields) bytes(step.*field);
    bytes(step.complaint);
    bytes(step.batches);
    int code = step.status.raw_code();
    std::string message(step.status.message());
    bytes(code);
    bytes(message);
    if constexpr (std::is_same_v<Bytes, RankBytesReader>) {
      step.status = absl::Status(static_cast<absl::StatusCode>(code), message);
    }
  }
}

}  // namespace

std::shared_ptr<void> HostMemory(Communicator&, size_t bytes) {
  constexpr std::align_val_t kAlignment{kGuardBytes};
  return {::operator new(bytes, kAlignment),
          [](void* memory) { ::operator delete(memory, kAlignment); }};
}

namespace {

absl::StatusOr<RankRun> RunOnRank(const SolvedProblem& solved,
                                  const BatchNormVariant& variant,
                                  const LayerFactory& make, Communicator& group,
                                  const MemoryFactory& factory) {
  const auto allocate = [&](size_t bytes) { return factory(group, bytes); };
  const BatchNormOptions options = OptionsOf(solved.problem, variant);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<BatchNorm> layer,
                            make(options, group));
  const bool tracked = options.track_running_stats;
  RunningMemory trained(allocate, solved, solved.first_mean,
                        solved.first_variance, tracked);
  RankRun run;
  for (int i = 0; i < kSteps; ++i) {
    const SolvedStep& step = solved.steps[static_cast<size_t>(i)];
    StepMemory memory(allocate, solved, variant, i, group.rank(),
                      layer->SavedBytes(solved.problem.type));
    RunningMemory given(allocate, solved, step.running_mean,
                        step.running_variance, tracked);
    run.push_back(RunStep(memory, step.training ? trained : given, *layer));
  }
  return run;
}

class OwningLayer : public BatchNorm {
 public:
  OwningLayer(std::unique_ptr<BatchNormKernels> kernels,
              std::unique_ptr<BatchNorm> layer)
      : kernels_(std::move(kernels)), layer_(std::move(layer)) {}

  int64_t SavedBytes(DataType type) const override {
    return layer_->SavedBytes(type);
  }
  absl::Status Forward(const ForwardBuffers& buffers) override {
    return layer_->Forward(buffers);
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        absl::FunctionRef<void()> gradients_ready) override {
    return layer_->Backward(buffers, gradients_ready);
  }

 private:
  const std::unique_ptr<BatchNormKernels> kernels_;  // Must outlive layer_.
  const std::unique_ptr<BatchNorm> layer_;
};

}  // namespace

LayerFactory SyncBatchNormOver(const KernelsFactory& make_kernels) {
  return [make_kernels](const BatchNormOptions& options, Communicator& group)
             -> absl::StatusOr<std::unique_ptr<BatchNorm>> {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNormKernels> kernels,
                              make_kernels());
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> layer,
                              SyncBatchNorm::Create(options, *kernels, group));
    return std::make_unique<OwningLayer>(std::move(kernels), std::move(layer));
  };
}

absl::StatusOr<std::vector<VariantRuns>> RunProblems(
    const RankRunner& run, std::span<const SolvedProblem> problems,
    std::span<const BatchNormVariant> variants, const LayerFactory& make,
    const MemoryFactory& allocate) {
  const auto outputs =
      run(problems.front().problem.world_size,
          [&](Communicator& group) -> absl::StatusOr<std::string> {
            RankBytesWriter writer;
            for (const SolvedProblem& solved : problems) {
              for (const BatchNormVariant& variant : variants) {
                LOCKSTEP_ASSIGN_OR_RETURN(
                    const RankRun outputs,
                    RunOnRank(solved, variant, make, group, allocate));
                PassRun(writer, outputs);
              }
            }
            return std::move(writer.bytes);
          });
  std::vector<VariantRuns> by_problem(problems.size(),
                                      VariantRuns(variants.size()));
  for (const absl::StatusOr<std::string>& output : outputs) {
    LOCKSTEP_RETURN_IF_ERROR(output.status());
    RankBytesReader reader(*output);
    for (VariantRuns& by_variant : by_problem) {
      for (std::vector<RankRun>& runs : by_variant) {
        PassRun(reader, runs.emplace_back(kSteps));
      }
    }
  }
  return by_problem;
}

absl::StatusOr<VariantRuns> RunVariants(
    Backend backend, const SolvedProblem& solved,
    std::span<const BatchNormVariant> variants, const LayerFactory& make,
    const RunRanksOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<VariantRuns> runs,
                            RunProblems(
                                [&](int world_size, const RankFunction& fn) {
                                  return RunRanksCollect(backend, world_size,
                                                         fn, options);
                                },
                                {&solved, 1}, variants, make));
  return std::move(runs.front());
}

}  // namespace lockstep::conformance
