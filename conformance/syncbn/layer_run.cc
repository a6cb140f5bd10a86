// Calls a layer with memory that shows what it writes.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <string>
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
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/solved_problem.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

constexpr size_t kGuardBytes = 64;
constexpr char kGuard = '\x5a';

std::string Complaint(BatchNormCheck check, const std::string& what) {
  return absl::StrCat(check.name(), ": ", what);
}

// Elements between two guards.
class GuardedBuffer {
 public:
  // `offset`: bytes off an address that is aligned to 64.
  GuardedBuffer(const MemoryFactory& allocate, DataType type,
                absl::string_view bytes, size_t offset)
      : type_(type),
        first_(bytes),
        offset_(kGuardBytes + offset),
        total_(offset_ + bytes.size() + kGuardBytes),
        memory_(std::static_pointer_cast<char>(allocate(total_))) {
    std::memset(memory_.get(), kGuard, total_);
    if (!bytes.empty()) std::memcpy(begin(), bytes.data(), bytes.size());
  }

  static GuardedBuffer Unwritten(const MemoryFactory& allocate, DataType type,
                                 int64_t count, size_t offset) {
    return {allocate, type,
            std::string(static_cast<size_t>(count * SizeOf(type)), kUnwritten),
            offset};
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
  std::string first_;  // What it held first.
  size_t offset_;
  size_t total_;
  std::shared_ptr<char> memory_;
};

// All memory of one step on one rank.
class StepMemory {
 public:
  StepMemory(const MemoryFactory& allocate, const SolvedProblem& solved,
             const BatchNormVariant& variant, int step, int rank,
             int64_t saved_bytes)
      : allocate_(allocate),
        exam_(solved),
        fused_(solved.problem.fused),
        shape_(solved.ShapeOf(step, rank, variant.layout)),
        training_(IsTraining(step)),
        in_(InputsOf(solved, variant, step, rank)),
        offset_(OffsetIn(step, solved.problem.type)),
        parameter_offset_(OffsetIn(step, solved.statistics_type)),
        x_(allocate, solved.problem.type, in_.x, offset_),
        residual_(allocate, solved.problem.type, in_.residual, offset_),
        dy_(allocate, solved.problem.type, in_.dy, offset_),
        y_(Activations(!InPlace())),
        dx_(Activations(!InPlace())),
        dresidual_(Activations(HasResidual(fused_))),
        weight_(Given(solved.layer.weight)),
        bias_(Given(solved.layer.bias)),
        dweight_(Parameters()),
        dbias_(Parameters()),
        saved_(GuardedBuffer::Unwritten(allocate, DataType::kUInt8, saved_bytes,
                                        0)) {}

  BatchNorm::Forwards Forwards(const RunningStatistics& running) const {
    return {.shape = shape_,
            .training = training_,
            .relu = HasRelu(fused_),
            .x = x_.buffer(),
            .residual = residual_.buffer(),
            .weight = weight_.buffer(),
            .bias = bias_.buffer(),
            .running = running,
            .y = y().buffer(),
            .saved = saved_.buffer()};
  }
  BatchNorm::Backwards Backwards() const {
    return {.shape = shape_,
            .training = training_,
            .relu = HasRelu(fused_),
            .x = x_.buffer(),
            .y = y().buffer(),
            .dy = dy_.buffer(),
            .weight = weight_.buffer(),
            .saved = saved_.buffer(),
            .dweight = dweight_.buffer(),
            .dbias = dbias_.buffer(),
            .dx = dx().buffer(),
            .dresidual = dresidual_.buffer()};
  }

  std::string Gradients() const { return dweight_.bytes() + dbias_.bytes(); }

  // The first thing written that should not be.
  std::string Touched() const {
    struct Part {
      const char* name;
      const GuardedBuffer& buffer;
      bool is_input = false;
    };
    const Part parts[] = {{"x", x_, true},
                          {"the residual", residual_, !InPlace()},
                          {"dy", dy_, !InPlace()},
                          {"y", y_},
                          {"dx", dx_},
                          {"dresidual", dresidual_},
                          {"the weight", weight_, true},
                          {"the bias", bias_, true},
                          {"dweight", dweight_},
                          {"dbias", dbias_},
                          {"saved", saved_}};
    for (const auto& [name, buffer, is_input] : parts) {
      if (!is_input || buffer.IsUntouched()) continue;
      return Complaint("Untouched", absl::StrCat(name, " has changed"));
    }
    for (const auto& [name, buffer, is_input] : parts) {
      if (buffer.GuardsHold()) continue;
      return Complaint("Untouched",
                       absl::StrCat("bytes beside ", name, " have changed"));
    }
    return "";
  }

  void MoveTo(RankOutputs& out) const {
    out.y = y().bytes();
    out.dx = dx().bytes();
    out.dresidual = dresidual_.bytes();
    out.dweight = dweight_.bytes();
    out.dbias = dbias_.bytes();
  }

 private:
  static const EncodedBatch& InputsOf(const SolvedProblem& solved,
                                      const BatchNormVariant& variant, int step,
                                      int rank) {
    const SolvedStep& of = solved.steps[static_cast<size_t>(step)];
    const auto& batches = variant.layout == Layout::kNchw ? of.nchw : of.nhwc;
    return batches[static_cast<size_t>(rank)];
  }
  static size_t OffsetIn(int step, DataType type) {
    return step == 1 ? static_cast<size_t>(SizeOf(type)) : 0;
  }

  bool InPlace() const { return fused_ == Fused::kInPlace; }
  const GuardedBuffer& y() const { return InPlace() ? residual_ : y_; }
  const GuardedBuffer& dx() const { return InPlace() ? dy_ : dx_; }

  GuardedBuffer Given(const std::vector<double>& parameter) const {
    const DataType type = exam_.statistics_type;
    return {allocate_, type,
            exam_.problem.affine ? Encode(type, parameter) : "",
            parameter_offset_};
  }
  GuardedBuffer Activations(bool wanted) const {
    return GuardedBuffer::Unwritten(allocate_, exam_.problem.type,
                                    wanted ? shape_.size() : 0, offset_);
  }
  GuardedBuffer Parameters() const {
    return GuardedBuffer::Unwritten(allocate_, exam_.statistics_type,
                                    exam_.problem.affine ? shape_.c : 0,
                                    parameter_offset_);
  }

  const MemoryFactory& allocate_;
  const SolvedProblem& exam_;
  const Fused fused_;
  const ActivationShape shape_;
  const bool training_;
  const EncodedBatch& in_;
  const size_t offset_;
  const size_t parameter_offset_;
  const GuardedBuffer x_;
  const GuardedBuffer residual_;
  const GuardedBuffer dy_;
  const GuardedBuffer y_;
  const GuardedBuffer dx_;
  const GuardedBuffer dresidual_;
  const GuardedBuffer weight_;
  const GuardedBuffer bias_;
  const GuardedBuffer dweight_;
  const GuardedBuffer dbias_;
  const GuardedBuffer saved_;
};

// The running statistics of one rank's layer.
struct RunningMemory {
  RunningMemory(const MemoryFactory& allocate, const SolvedProblem& solved,
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
  out.status = layer.Forward(memory.Forwards(running.view()));
  if (out.status.ok()) {
    out.status = layer.Backward(memory.Backwards(), [&] {
      ++calls;
      when_ready = memory.Gradients();
    });
  }
  memory.MoveTo(out);
  running.MoveTo(out);
  out.complaint = memory.Touched();
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

void AppendNumber(int64_t value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

int64_t TakeNumber(absl::string_view& in) {
  int64_t value = 0;
  std::memcpy(&value, in.data(), sizeof(value));
  in.remove_prefix(sizeof(value));
  return value;
}

void AppendBytes(absl::string_view bytes, std::string& out) {
  AppendNumber(static_cast<int64_t>(bytes.size()), out);
  out.append(bytes.data(), bytes.size());
}

std::string TakeBytes(absl::string_view& in) {
  const auto size = static_cast<size_t>(TakeNumber(in));
  std::string bytes(in.substr(0, size));
  in.remove_prefix(size);
  return bytes;
}

}  // namespace

std::shared_ptr<void> HostMemory(size_t bytes) {
  constexpr std::align_val_t kAlignment{kGuardBytes};
  return {::operator new(bytes, kAlignment),
          [](void* memory) { ::operator delete(memory, kAlignment); }};
}

absl::StatusOr<RankRun> RunOnRank(const SolvedProblem& solved,
                                  const BatchNormVariant& variant,
                                  const LayerFactory& make, Communicator& group,
                                  const MemoryFactory& allocate) {
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

std::string Serialize(const std::vector<RankRun>& runs) {
  std::string out;
  for (const RankRun& run : runs) {
    for (const RankOutputs& step : run) {
      for (const auto& [name, field] : kOutputFields) {
        AppendBytes(step.*field, out);
      }
      AppendBytes(step.complaint, out);
      AppendNumber(step.batches, out);
      AppendNumber(static_cast<int64_t>(step.status.code()), out);
      AppendBytes(std::string(step.status.message()), out);
    }
  }
  return out;
}

std::vector<RankRun> ParseRuns(absl::string_view bytes) {
  std::vector<RankRun> runs;
  while (!bytes.empty()) {
    RankRun run(kSteps);
    for (RankOutputs& step : run) {
      for (const auto& [name, field] : kOutputFields) {
        step.*field = TakeBytes(bytes);
      }
      step.complaint = TakeBytes(bytes);
      step.batches = TakeNumber(bytes);
      const auto code = static_cast<absl::StatusCode>(TakeNumber(bytes));
      step.status = absl::Status(code, TakeBytes(bytes));
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

namespace {

// Owns its kernels, and waits for what they do.
class OwningLayer : public BatchNorm {
 public:
  OwningLayer(std::unique_ptr<BatchNormKernels> kernels,
              std::unique_ptr<BatchNorm> layer, absl::Status (*wait)())
      : kernels_(std::move(kernels)), layer_(std::move(layer)), wait_(wait) {}

  int64_t SavedBytes(DataType type) const override {
    return layer_->SavedBytes(type);
  }
  absl::Status Forward(const Forwards& buffers) override {
    LOCKSTEP_RETURN_IF_ERROR(layer_->Forward(buffers));
    return wait_();
  }
  absl::Status Backward(const Backwards& buffers,
                        absl::FunctionRef<void()> gradients_ready) override {
    absl::Status ready;
    LOCKSTEP_RETURN_IF_ERROR(layer_->Backward(buffers, [&] {
      ready = wait_();
      gradients_ready();
    }));
    LOCKSTEP_RETURN_IF_ERROR(ready);
    return wait_();
  }

 private:
  const std::unique_ptr<BatchNormKernels> kernels_;  // Outlives layer_.
  const std::unique_ptr<BatchNorm> layer_;
  absl::Status (*const wait_)();
};

}  // namespace

LayerFactory SyncBatchNormOver(const KernelsFactory& make_kernels,
                               absl::Status (*wait)()) {
  return [make_kernels, wait](const BatchNormOptions& options,
                              Communicator& group)
             -> absl::StatusOr<std::unique_ptr<BatchNorm>> {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNormKernels> kernels,
                              make_kernels());
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> layer,
                              SyncBatchNorm::Create(options, *kernels, group));
    return std::make_unique<OwningLayer>(std::move(kernels), std::move(layer),
                                         wait);
  };
}

absl::StatusOr<std::vector<std::vector<RankRun>>> RunVariants(
    Backend backend, const SolvedProblem& solved,
    std::span<const BatchNormVariant> variants, const LayerFactory& make,
    const RunRanksOptions& options) {
  const auto outputs = RunRanksCollect(
      backend, solved.problem.world_size,
      [&](Communicator& group) -> absl::StatusOr<std::string> {
        std::vector<RankRun> runs;
        for (const BatchNormVariant& variant : variants) {
          LOCKSTEP_ASSIGN_OR_RETURN(RankRun run,
                                    RunOnRank(solved, variant, make, group));
          runs.push_back(std::move(run));
        }
        return Serialize(runs);
      },
      options);
  std::vector<std::vector<RankRun>> by_variant(variants.size());
  for (const absl::StatusOr<std::string>& output : outputs) {
    LOCKSTEP_RETURN_IF_ERROR(output.status());
    std::vector<RankRun> runs = ParseRuns(*output);
    for (size_t v = 0; v < variants.size(); ++v) {
      by_variant[v].push_back(std::move(runs[v]));
    }
  }
  return by_variant;
}

}  // namespace lockstep
