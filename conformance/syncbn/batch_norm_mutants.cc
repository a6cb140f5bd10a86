// Puts a mutation around the parts of a layer, and plants mutants.
#include "conformance/syncbn/batch_norm_mutants.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
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
#include "conformance/decorators.h"
#include "conformance/mutant.h"
#include "base/slice.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/plain_kernels.h"
#include "conformance/syncbn/solved_problem.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

bool AsksSameBits(const Mutant& mutant) {
  return mutant.checks[0] == "SameBits";
}

class MutatedKernels : public BatchNormKernels {
 public:
  MutatedKernels(const BatchNormMutation& mutation, int rank,
                 std::unique_ptr<BatchNormKernels> real)
      : mutation_(mutation), rank_(rank), real_(std::move(real)) {}

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override {
    return real_->Allocate(bytes);
  }

  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override {
    LOCKSTEP_RETURN_IF_ERROR(real_->ComputeMoments(shape, x, record));
    if (mutation_.moments != nullptr) {
      mutation_.moments(
          shape, x,
          RecordAccess({.channels = shape.c, .type = StatisticsTypeOf(x.type)},
                       record));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Merge(const StatisticsRecord& record,
                                const std::byte* gathered, int ranks,
                                const MergeOptions& options,
                                const RunningStatistics& running,
                                std::byte* saved) override {
    if (mutation_.merges == nullptr) {
      return real_->Merge(record, gathered, ranks, options, running, saved);
    }
    return mutation_.merges(*real_, {record, gathered, ranks, options, running,
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
    if (mutation_.normalized == nullptr) return absl::OkStatus();
    NormalizeCall before = call;
    if (!residual.empty()) before.residual.data = residual.data();
    mutation_.normalized(before,
                         ConstBuffer(y.data(), call.y.count, call.y.type));
    return absl::OkStatus();
  }

  absl::Status BackwardReduce(const BackwardCall& call, Buffer sums,
                              Buffer dweight, Buffer dbias) override {
    BackwardCall told = call;
    if (mutation_.told_reduce != nullptr) mutation_.told_reduce(told);
    LOCKSTEP_RETURN_IF_ERROR(real_->BackwardReduce(told, sums, dweight, dbias));
    if (mutation_.reduced != nullptr) mutation_.reduced(rank_, dweight, dbias);
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
    if (mutation_.told_input != nullptr) mutation_.told_input(told, told_sums);
    LOCKSTEP_RETURN_IF_ERROR(
        real_->BackwardInput(told, told_sums, dx, dresidual));
    if (mutation_.input_gradient != nullptr) {
      mutation_.input_gradient(
          call, ConstBuffer(dy.data(), call.dy.count, call.dy.type), dx,
          dresidual);
    }
    return absl::OkStatus();
  }

 private:
  const BatchNormMutation& mutation_;
  const int rank_;
  const std::unique_ptr<BatchNormKernels> real_;
};

class MutatedGroup : public ForwardingCommunicator {
 public:
  MutatedGroup(const BatchNormMutation& mutation, Communicator& real)
      : ForwardingCommunicator(real), mutation_(mutation) {}

  absl::Status Run(const Collective& call) override {
    return mutation_.runs != nullptr ? mutation_.runs(inner(), call)
                                     : inner().Run(call);
  }

 private:
  const BatchNormMutation& mutation_;
};

// Owns the parts, which refer to each other.
class MutatedLayer : public BatchNorm {
 public:
  static absl::StatusOr<std::unique_ptr<BatchNorm>> Create(
      const BatchNormMutation& mutation, const KernelsFactory& make_kernels,
      BatchNormOptions options, Communicator& group) {
    auto layer = std::unique_ptr<MutatedLayer>(
        new MutatedLayer(mutation, make_kernels(), group));
    if (mutation.told != nullptr) mutation.told(options);
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
    return mutation_.forwards != nullptr
               ? mutation_.forwards(*real_, *untracked_, buffers)
               : real_->Forward(buffers);
  }
  absl::Status Backward(const Backwards& buffers,
                        absl::FunctionRef<void()> gradients_ready) override {
    return mutation_.backwards != nullptr
               ? mutation_.backwards(*real_, group_, buffers, gradients_ready)
               : real_->Backward(buffers, gradients_ready);
  }

 private:
  MutatedLayer(const BatchNormMutation& mutation,
               std::unique_ptr<BatchNormKernels> kernels, Communicator& group)
      : mutation_(mutation),
        kernels_(mutation_, group.rank(), std::move(kernels)),
        group_(mutation_, group) {}

  const BatchNormMutation mutation_;
  MutatedKernels kernels_;
  MutatedGroup group_;
  std::unique_ptr<BatchNorm> real_;
  std::unique_ptr<BatchNorm> untracked_;
};

RunRanksOptions GroupOf() {
  RunRanksOptions options;
  // A group that a mutant breaks has ended by then, and has not waited for it.
  options.group.timeout = absl::Seconds(10);
  options.deadline = absl::Minutes(2);
  return options;
}

std::unique_ptr<BatchNormKernels> MakeCpuKernels() {
  return std::make_unique<CpuBatchNormKernels>();
}

// The problems and the variants in which it must show.
struct Shown {
  BatchNormProblem problem;
  std::vector<BatchNormVariant> variants;
};
std::vector<Shown> WhereItShows(const BatchNormMutation& mutation) {
  std::vector<Shown> all;
  for (const BatchNormProblem& problem :
       mutation.problems != nullptr ? mutation.problems() : MutantProblems()) {
    Shown shown = {problem, AllVariants()};
    std::erase_if(shown.variants, [&](const BatchNormVariant& variant) {
      return !mutation.shows(problem, variant);
    });
    if (!shown.variants.empty()) all.push_back(std::move(shown));
  }
  return all;
}

// Plants it in groups that each of the variants leaves usable.
absl::StatusOr<int64_t> PlantIn(const Shown& shown, const Mutant& mutant,
                                const BatchNormMutation& mutation) {
  const SolvedProblem problem = SolveProblem(shown.problem);
  std::vector<std::vector<BatchNormVariant>> groups = {shown.variants};
  if (mutation.breaks_group) {
    groups.clear();
    for (const auto& variant : shown.variants) groups.push_back({variant});
  }
  for (const std::vector<BatchNormVariant>& variants : groups) {
    for (const absl::Status& status :
         CheckMutated(mutation, AsksSameBits(mutant), problem, variants)) {
      LOCKSTEP_RETURN_IF_ERROR(
          ExpectNamed(mutant, status, ToString(shown.problem)));
    }
  }
  return std::ssize(shown.variants);
}

}  // namespace

LayerFactory MakeMutated(const BatchNormMutation& mutation,
                         const KernelsFactory& make_kernels) {
  return [=](const BatchNormOptions& options, Communicator& group) {
    return MutatedLayer::Create(mutation, make_kernels, options, group);
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

std::vector<BatchNormProblem> MutantProblems() {
  std::vector<BatchNormProblem> grid;
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    for (const RankBatches batches : kAllBatches) {
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

std::vector<absl::Status> CheckMutated(
    const BatchNormMutation& mutation, bool twice, const SolvedProblem& problem,
    const std::vector<BatchNormVariant>& variants) {
  std::vector<BatchNormVariant> all = variants;
  if (twice) all.insert(all.end(), variants.begin(), variants.end());
  const auto runs =
      RunVariants(Backend::kThreads, problem, all,
                  MakeMutated(mutation, MakeCpuKernels), GroupOf());
  if (!runs.ok()) return {variants.size(), runs.status()};
  std::vector<absl::Status> statuses;
  for (size_t v = 0; v < variants.size(); ++v) {
    const auto& run = (*runs)[v];
    absl::Status status = CheckRun(problem, variants[v], run);
    if (status.ok() && twice) {
      status = CheckSameBits(problem, variants[v], run,
                             (*runs)[variants.size() + v], "in another run");
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

Mutant Planted(Mutant mutant, const BatchNormMutation& mutation) {
  mutant.plant = [mutation,
                  twice = AsksSameBits(mutant)]() -> absl::StatusOr<Caught> {
    const std::vector<Shown> all = WhereItShows(mutation);
    if (all.empty()) return absl::InternalError("it shows in no case");
    return CaughtBy(CheckMutated(mutation, twice, SolveProblem(all[0].problem),
                                 {all[0].variants[0]})[0]);
  };
  mutant.plant_everywhere = [mutant, mutation]() -> absl::StatusOr<int64_t> {
    int64_t cases = 0;
    for (const Shown& shown : SliceOf(WhereItShows(mutation), 20)) {
      LOCKSTEP_ASSIGN_OR_RETURN(const int64_t here,
                                PlantIn(shown, mutant, mutation));
      cases += here;
    }
    return cases;
  };
  return mutant;
}

MutantSuite BatchNormMutants() {
  std::vector<Mutant> all;
  for (const auto& some : {SumMutants(), StatisticsMutants(), RunningMutants(),
                           GradientMutants()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return MakeSuite("syncbn", kBatchNormChecks, std::move(all));
}

}  // namespace lockstep
