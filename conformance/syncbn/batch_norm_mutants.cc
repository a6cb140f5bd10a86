// Wraps the parts of a layer in a mutation, and plants mutants.
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
#include "base/slice.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/gradient_mutants.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/running_mutants.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/statistics_mutants.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {
namespace {

bool AsksSameBits(const Mutant& mutant) {
  return mutant.checks[0] == "SameBits";
}

std::string BytesOf(const ConstBuffer& buffer) {
  return std::string(reinterpret_cast<const char*>(buffer.bytes()),
                     static_cast<size_t>(buffer.size_bytes()));
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
      mutation_.moments(shape, x,
                        RecordAccess(RecordOf(shape.c, x.type), record));
    }
    return absl::OkStatus();
  }

  absl::Status Merge(const BatchNormKernels::MergeCall& call) override {
    if (mutation_.merges == nullptr) return real_->Merge(call);
    return mutation_.merges(*real_, {call, call.ranks == 1 ? 0 : rank_});
  }

  absl::StatusOr<int64_t> ReadCount(const std::byte* saved) override {
    return real_->ReadCount(saved);
  }

  absl::Status UseRunning(const RunningCall& call) override {
    return real_->UseRunning(call);
  }

  absl::Status Normalize(const NormalizeCall& call) override {
    if (mutation_.normalized == nullptr) return real_->Normalize(call);
    // Copied first, because y may overwrite this buffer.
    const std::string residual = BytesOf(call.residual);
    const std::string y = BytesOf(call.y);
    LOCKSTEP_RETURN_IF_ERROR(real_->Normalize(call));
    NormalizeCall before = call;
    if (!residual.empty()) before.residual.data = residual.data();
    mutation_.normalized(before,
                         ConstBuffer(y.data(), call.y.count, call.y.type));
    return absl::OkStatus();
  }

  absl::Status BackwardReduce(const BackwardCall& call) override {
    BackwardCall told = call;
    if (mutation_.told_reduce != nullptr) mutation_.told_reduce(told);
    LOCKSTEP_RETURN_IF_ERROR(real_->BackwardReduce(told));
    if (mutation_.reduced != nullptr) {
      mutation_.reduced(rank_, call.dweight, call.dbias);
    }
    return absl::OkStatus();
  }

  absl::Status BackwardInput(const BackwardCall& call) override {
    std::string sums = BytesOf(call.sums);
    const std::string dy = BytesOf(call.dy);
    BackwardCall told = call;
    told.sums.data = sums.data();
    if (mutation_.told_input != nullptr) mutation_.told_input(told);
    LOCKSTEP_RETURN_IF_ERROR(real_->BackwardInput(told));
    if (mutation_.input_gradient != nullptr) {
      mutation_.input_gradient(
          call, ConstBuffer(dy.data(), call.dy.count, call.dy.type));
    }
    return absl::OkStatus();
  }

 private:
  const BatchNormMutation& mutation_;
  const int rank_;
  const std::unique_ptr<BatchNormKernels> real_;
};

// Owns the parts, which refer to each other.
class MutatedLayer : public BatchNorm {
 public:
  static absl::StatusOr<std::unique_ptr<BatchNorm>> Create(
      const BatchNormMutation& mutation, const KernelsFactory& make_kernels,
      BatchNormOptions options, Communicator& group) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNormKernels> kernels,
                              make_kernels());
    auto layer = std::unique_ptr<MutatedLayer>(
        new MutatedLayer(mutation, std::move(kernels), group));
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
  absl::Status Forward(const ForwardBuffers& buffers) override {
    return mutation_.forwards != nullptr
               ? mutation_.forwards(*real_, *untracked_, buffers)
               : real_->Forward(buffers);
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        absl::FunctionRef<void()> gradients_ready) override {
    return mutation_.backwards != nullptr
               ? mutation_.backwards({*real_, group_, buffers, gradients_ready})
               : real_->Backward(buffers, gradients_ready);
  }

 private:
  MutatedLayer(const BatchNormMutation& mutation,
               std::unique_ptr<BatchNormKernels> kernels, Communicator& group)
      : mutation_(mutation),
        kernels_(mutation_, group.rank(), std::move(kernels)),
        group_(group, [this](Communicator& real, const Collective& call) {
          return mutation_.runs != nullptr ? mutation_.runs(real, call)
                                           : real.Run(call);
        }) {}

  const BatchNormMutation mutation_;
  MutatedKernels kernels_;
  GroupMutant group_;
  std::unique_ptr<BatchNorm> real_;
  std::unique_ptr<BatchNorm> untracked_;
};

RunRanksOptions GroupOf() {
  RunRanksOptions options;
  // A group that a mutant breaks fails within this time.
  options.group.timeout = absl::Seconds(10);
  return options;
}

// A problem, with the variants in which the mutant must show.
struct ShowingCase {
  BatchNormProblem problem;
  std::vector<BatchNormVariant> variants;
};
std::vector<ShowingCase> FindShowingCases(const LayerRanks& ranks,
                                          const BatchNormMutation& mutation) {
  std::vector<ShowingCase> all;
  for (const BatchNormProblem& problem :
       mutation.problems != nullptr ? mutation.problems() : MutantProblems()) {
    ShowingCase shown = {problem, AllVariants(problem)};
    std::erase_if(shown.variants, [&](const BatchNormVariant& variant) {
      const bool lacks =
          variant.layout == Layout::kNchw16c && !ranks.has_blocks;
      return lacks || !mutation.shows.In(problem, variant);
    });
    if (problem.type == DataType::kFloat64 && !ranks.has_float64) continue;
    if (!shown.variants.empty()) all.push_back(std::move(shown));
  }
  return all;
}

// Plants the mutant. If it breaks its group, each variant gets a new group.
absl::StatusOr<int64_t> PlantIn(const LayerRanks& ranks,
                                const ShowingCase& shown, const Mutant& mutant,
                                const BatchNormMutation& mutation) {
  const SolvedProblem problem = SolveProblem(shown.problem);
  std::vector<std::vector<BatchNormVariant>> groups = {shown.variants};
  if (mutation.breaks_group) {
    groups.clear();
    for (const auto& variant : shown.variants) groups.push_back({variant});
  }
  for (const std::vector<BatchNormVariant>& variants : groups) {
    for (const absl::Status& status : CheckMutated(
             ranks, mutation, AsksSameBits(mutant), problem, variants)) {
      LOCKSTEP_RETURN_IF_ERROR(
          ExpectNamed(mutant, status, ToString(shown.problem)));
    }
  }
  return std::ssize(shown.variants);
}

Mutant PlantedOn(const LayerRanks& ranks, Mutant mutant,
                 const BatchNormMutation& mutation) {
  mutant.plant = [ranks, mutation,
                  twice = AsksSameBits(mutant)]() -> absl::StatusOr<Caught> {
    const ShowingCase first = FindShowingCases(ranks, mutation).front();
    return CaughtBy(CheckMutated(ranks, mutation, twice,
                                 SolveProblem(first.problem),
                                 {first.variants[0]})[0]);
  };
  mutant.plant_everywhere = [ranks, mutant,
                             mutation]() -> absl::StatusOr<int64_t> {
    int64_t cases = 0;
    for (const ShowingCase& shown :
         SliceOf(FindShowingCases(ranks, mutation), 20)) {
      LOCKSTEP_ASSIGN_OR_RETURN(const int64_t here,
                                PlantIn(ranks, shown, mutant, mutation));
      cases += here;
    }
    return cases;
  };
  return mutant;
}

}  // namespace

std::unique_ptr<BatchNormKernels> MakeCpuKernels() {
  return std::make_unique<CpuBatchNormKernels>();
}

bool MutantConditions::In(const BatchNormProblem& problem,
                          const BatchNormVariant& variant) const {
  int64_t count = 0;
  int ranks_with_values = 0;
  for (const int64_t n : BatchSizes(problem, 0)) {
    count += n * problem.hw;
    ranks_with_values += n > 0;
  }
  const bool refuses = variant.semantics.refuses_one_value;
  const bool enters = variant.tracking != Tracking::kNone && count > 1;
  return (!affine || problem.affine) && (!relu || HasRelu(problem.fused)) &&
         (!residual || HasResidual(problem.fused)) &&
         (!pixels || problem.hw > 1) && (!one_pixel || problem.hw == 1) &&
         (!blocks.has_value() ||
          *blocks == (variant.layout == Layout::kNchw16c)) &&
         problem.channels >= channels && (!spiked || IsSpiked(problem)) &&
         count >= values && (!one_value || count == 1) &&
         (!outputs || count > (refuses ? 1 : 0)) &&
         (!own_accepted || !(refuses && problem.hw == 1)) &&
         ranks_with_values >= ranks &&
         (!empty_rank || (problem.batches == RankBatches::kEmptyRank &&
                          problem.world_size > 1)) &&
         (!tracked || enters) &&
         (!momentum || variant.tracking == Tracking::kMomentum) &&
         (semantics == nullptr || variant.semantics.name == semantics) &&
         (also == nullptr || also(problem));
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

LayerRanks CpuLayersOnThreads() {
  return {.run =
              [](int world_size, const RankFunction& fn) {
                return RunRanksCollect(Backend::kThreads, world_size, fn,
                                       GroupOf());
              },
          .make_kernels = [](Communicator&) { return MakeCpuKernels(); }};
}

std::vector<absl::Status> CheckMutated(
    const LayerRanks& ranks, const BatchNormMutation& mutation, bool twice,
    const SolvedProblem& problem,
    const std::vector<BatchNormVariant>& variants) {
  std::vector<BatchNormVariant> all = variants;
  if (twice) all.insert(all.end(), variants.begin(), variants.end());
  const auto make = [&](const BatchNormOptions& options, Communicator& group) {
    return MutatedLayer::Create(
        mutation, [&] { return ranks.make_kernels(group); }, options, group);
  };
  const auto problems =
      RunProblems(ranks.run, {&problem, 1}, all, make, ranks.allocate);
  if (!problems.ok()) return {variants.size(), problems.status()};
  const VariantRuns& runs = problems->front();
  std::vector<absl::Status> statuses;
  for (size_t v = 0; v < variants.size(); ++v) {
    const auto& run = runs[v];
    absl::Status status = MeasureRun(problem, variants[v], run).status();
    if (status.ok() && twice) {
      status = CheckSameBits(problem, variants[v], run,
                             runs[variants.size() + v], "in another run");
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

MutantSuite BatchNormMutants(const LayerRanks& ranks) {
  std::vector<Mutant> all;
  for (const auto& some :
       {StatisticsMutants(), RunningMutants(), GradientMutants()}) {
    for (const BatchNormMutant& planted : some) {
      if (FindShowingCases(ranks, planted.mutation).empty()) continue;
      all.push_back(PlantedOn(ranks, planted.mutant, planted.mutation));
    }
  }
  return MakeSuite("syncbn", kBatchNormChecks, std::move(all));
}

}  // namespace lockstep::conformance
