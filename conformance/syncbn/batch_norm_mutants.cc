// Puts a fault around the parts of a layer.
#include "conformance/syncbn/batch_norm_mutants.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/plain_kernels.h"
#include "conformance/syncbn/run_variants.h"
#include "conformance/syncbn/solved_problem.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

class FaultyKernels : public BatchNormKernels {
 public:
  FaultyKernels(const BatchNormFault& fault, int rank,
                std::unique_ptr<BatchNormKernels> real)
      : fault_(fault), rank_(rank), real_(std::move(real)) {}

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override {
    return real_->Allocate(bytes);
  }

  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override {
    LOCKSTEP_RETURN_IF_ERROR(real_->ComputeMoments(shape, x, record));
    if (fault_.moments != nullptr) {
      fault_.moments(
          shape, x,
          RecordView({.channels = shape.c, .type = StatisticsTypeOf(x.type)},
                     record));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Merge(const StatisticsRecord& record,
                                const std::byte* gathered, int ranks,
                                const MergeOptions& options,
                                const RunningStatistics& running,
                                std::byte* saved) override {
    if (fault_.merges == nullptr) {
      return real_->Merge(record, gathered, ranks, options, running, saved);
    }
    return fault_.merges(*real_, {record, gathered, ranks, options, running,
                                  saved, ranks == 1 ? 0 : rank_});
  }

  absl::Status UseRunning(const StatisticsRecord& record,
                          const RunningStatistics& running, double epsilon,
                          std::byte* saved) override {
    return real_->UseRunning(record, running, epsilon, saved);
  }

  absl::Status Normalize(const NormalizeCall& call) override {
    // As it was, in case y is written there.
    const std::string residual(
        reinterpret_cast<const char*>(call.residual.bytes()),
        static_cast<size_t>(call.residual.size_bytes()));
    const std::string y(reinterpret_cast<const char*>(call.y.bytes()),
                        static_cast<size_t>(call.y.size_bytes()));
    LOCKSTEP_RETURN_IF_ERROR(real_->Normalize(call));
    if (fault_.normalized == nullptr) return absl::OkStatus();
    NormalizeCall before = call;
    if (!residual.empty()) before.residual.data = residual.data();
    fault_.normalized(before, ConstBuffer(y.data(), call.y.count, call.y.type));
    return absl::OkStatus();
  }

  absl::Status BackwardReduce(const BackwardCall& call, Buffer sums,
                              Buffer dweight, Buffer dbias) override {
    BackwardCall told = call;
    if (fault_.told_reduce != nullptr) fault_.told_reduce(told);
    LOCKSTEP_RETURN_IF_ERROR(real_->BackwardReduce(told, sums, dweight, dbias));
    if (fault_.reduced != nullptr) fault_.reduced(rank_, dweight, dbias);
    return absl::OkStatus();
  }

  absl::Status BackwardInput(const BackwardCall& call, ConstBuffer sums,
                             Buffer dx, Buffer dresidual) override {
    std::string copy(reinterpret_cast<const char*>(sums.bytes()),
                     static_cast<size_t>(sums.size_bytes()));
    const Buffer told_sums(copy.data(), sums.count, sums.type);
    const std::string dy(reinterpret_cast<const char*>(call.dy.bytes()),
                         static_cast<size_t>(call.dy.size_bytes()));
    BackwardCall told = call;
    if (fault_.told_input != nullptr) fault_.told_input(told, told_sums);
    LOCKSTEP_RETURN_IF_ERROR(
        real_->BackwardInput(told, told_sums, dx, dresidual));
    if (fault_.input_gradient != nullptr) {
      fault_.input_gradient(call,
                            ConstBuffer(dy.data(), call.dy.count, call.dy.type),
                            dx, dresidual);
    }
    return absl::OkStatus();
  }

 private:
  const BatchNormFault& fault_;
  const int rank_;
  const std::unique_ptr<BatchNormKernels> real_;
};

class FaultyGroup : public Communicator {
 public:
  FaultyGroup(const BatchNormFault& fault, Communicator& real)
      : fault_(fault), real_(real) {}

  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  absl::Status Run(const Collective& call) override {
    return fault_.runs != nullptr ? fault_.runs(real_, call) : real_.Run(call);
  }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    return real_.Allocate(bytes, site);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override {
    return real_.Split(color, key, site);
  }

 private:
  const BatchNormFault& fault_;
  Communicator& real_;
};

// Owns the parts, which refer to each other.
class FaultyLayer : public BatchNorm {
 public:
  static absl::StatusOr<std::unique_ptr<BatchNorm>> Create(
      const BatchNormFault& fault, const KernelsFactory& make_kernels,
      BatchNormOptions options, Communicator& group) {
    auto layer = std::unique_ptr<FaultyLayer>(
        new FaultyLayer(fault, make_kernels(), group));
    if (fault.told != nullptr) fault.told(options);
    LOCKSTEP_ASSIGN_OR_RETURN(
        layer->real_,
        SyncBatchNorm::Create(options, layer->kernels_, layer->group_));
    options.track_running_stats = false;
    LOCKSTEP_ASSIGN_OR_RETURN(
        layer->untracked_,
        SyncBatchNorm::Create(options, layer->kernels_, layer->group_));
    return std::unique_ptr<BatchNorm>(std::move(layer));
  }

  int64_t SavedBytes(DataType type) const override {
    return real_->SavedBytes(type);
  }
  absl::Status Forward(const Forwards& buffers) override {
    return fault_.forwards != nullptr
               ? fault_.forwards(*real_, *untracked_, buffers)
               : real_->Forward(buffers);
  }
  absl::Status Backward(const Backwards& buffers,
                        absl::FunctionRef<void()> gradients_ready) override {
    return fault_.backwards != nullptr
               ? fault_.backwards(*real_, group_, buffers, gradients_ready)
               : real_->Backward(buffers, gradients_ready);
  }

 private:
  FaultyLayer(const BatchNormFault& fault,
              std::unique_ptr<BatchNormKernels> kernels, Communicator& group)
      : fault_(fault),
        kernels_(fault_, group.rank(), std::move(kernels)),
        group_(fault_, group) {}

  const BatchNormFault fault_;
  FaultyKernels kernels_;
  FaultyGroup group_;
  std::unique_ptr<BatchNorm> real_;
  std::unique_ptr<BatchNorm> untracked_;
};

}  // namespace

LayerFactory MakeFaulty(const BatchNormFault& fault,
                        const KernelsFactory& make_kernels) {
  return [=](const BatchNormOptions& options, Communicator& group) {
    return FaultyLayer::Create(fault, make_kernels, options, group);
  };
}

int64_t ValuesOf(const BatchNormProblem& problem, int step) {
  int64_t values = 0;
  for (const int64_t n : BatchSizes(problem, step)) values += n * problem.hw;
  return values;
}

int RanksWithValues(const BatchNormProblem& problem, int step) {
  int ranks = 0;
  for (const int64_t n : BatchSizes(problem, step)) ranks += n > 0 ? 1 : 0;
  return ranks;
}

// Plants faults in layers and asks the suite.
namespace {

// A group that a fault breaks has ended by then, and has not waited for it.
constexpr absl::Duration kGroupTimeout = absl::Seconds(10);
constexpr absl::Duration kDeadline = absl::Minutes(2);

RunRanksOptions GroupOf() {
  RunRanksOptions options;
  options.group.timeout = kGroupTimeout;
  options.deadline = kDeadline;
  return options;
}

LayerFactory MakeOnCpu(const BatchNormFault& fault) {
  return MakeFaulty(fault, [] {
    return std::unique_ptr<BatchNormKernels>(
        std::make_unique<CpuBatchNormKernels>());
  });
}

}  // namespace

std::vector<BatchNormFault> AllBatchNormFaults() {
  std::vector<BatchNormFault> all;
  for (const auto& some : {SumFaults(), StatisticsFaults(), RunningFaults(),
                           GradientFaults(), CallFaults()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<BatchNormProblem> FaultProblems(const BatchNormFault& fault) {
  if (fault.problems != nullptr) return fault.problems();
  std::vector<BatchNormProblem> grid;
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    for (const Batches batches : kAllBatches) {
      for (const int world_size : {1, 3}) {
        for (const auto& problem : ProblemsOf(world_size, type, batches)) {
          if (problem.channels == 3 || problem.channels == 65) {
            grid.push_back(problem);
          }
        }
      }
      for (const auto& problem : FusedProblemsOf(3, type, batches)) {
        grid.push_back(problem);
      }
    }
  }
  std::vector<BatchNormProblem> sample;
  for (size_t i = 0; i < grid.size(); ++i) {
    if (Hash(i) % 3 == 0) sample.push_back(grid[i]);
  }
  return sample;
}

std::vector<absl::Status> CheckFaulty(
    const BatchNormFault& fault, const BatchNormExam& exam,
    const std::vector<BatchNormVariant>& variants) {
  const bool twice = fault.check == "SameBits";
  std::vector<BatchNormVariant> all = variants;
  if (twice) all.insert(all.end(), variants.begin(), variants.end());
  const auto runs =
      RunVariants(Backend::kThreads, exam, all, MakeOnCpu(fault), GroupOf());
  if (!runs.ok()) return {variants.size(), runs.status()};
  std::vector<absl::Status> statuses;
  for (size_t v = 0; v < variants.size(); ++v) {
    const auto& run = (*runs)[v];
    absl::Status status = CheckRun(exam, variants[v], run);
    if (status.ok() && twice) {
      status = CheckSameBits(exam, variants[v], run,
                             (*runs)[variants.size() + v], "in another run");
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

}  // namespace lockstep
