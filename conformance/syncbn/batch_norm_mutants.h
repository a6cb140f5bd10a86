// Mutants of one SyncBatchNorm layer, which the checks of batch norm must
// reject.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_MUTANTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {

// A merge on one of the ranks.
struct MergeCall : BatchNormKernels::MergeCall {
  int own = 0;  // The rank that merges.
};

// A call of Backward.
struct BackwardsCall {
  BatchNorm& real;
  Communicator& group;
  const BatchNorm::BackwardBuffers& buffers;
  absl::FunctionRef<void()> ready;
};

using MergeResult = absl::Status;

// The cases in which a mutant must be rejected: those that meet every
// condition.
struct MutantConditions {
  bool affine = false;
  bool relu = false;
  bool residual = false;
  bool pixels = false;  // A channel has several pixels.
  // A channel has one pixel, so that n and n - 1 differ by more than rounding.
  bool one_pixel = false;
  std::optional<bool> blocks = std::nullopt;  // Whether channels are in blocks.
  int64_t channels = 1;                       // The minimum.
  bool spiked = false;
  // The minimum number of values per channel in the batch. From 4 on, dx does
  // not vanish, and chance does not hide a wrong statistic.
  int64_t values = 0;
  bool one_value = false;     // The batch has exactly one value per channel.
  bool outputs = false;       // y is computed: the batch is not refused.
  bool own_accepted = false;  // A rank's own batch would not be refused either.
  int ranks = 0;              // The minimum number of ranks that have values.
  bool empty_rank = false;    // One of several ranks has no samples.
  bool tracked = false;       // Batches enter the running statistics.
  bool momentum = false;      // Batches enter with momentum.
  const char* semantics = nullptr;
  bool (*also)(const BatchNormProblem& problem) = nullptr;

  bool In(const BatchNormProblem& problem,
          const BatchNormVariant& variant) const;
};

// A change to the kernels, the group or the layer. A null hook changes nothing.
struct BatchNormMutation {
  using BackwardCall = BatchNormKernels::BackwardCall;
  using NormalizeCall = BatchNormKernels::NormalizeCall;

  MutantConditions shows;
  // The problems in which the mutant is planted, if not MutantProblems().
  std::vector<BatchNormProblem> (*problems)() = nullptr;
  // Whether the mutation leaves the group unusable, so that each case needs its
  // own.
  bool breaks_group = false;

  // Changes the options that the layer receives.
  void (*told)(BatchNormOptions& options) = nullptr;
  // Runs after ComputeMoments.
  void (*moments)(const ActivationShape& shape, ConstBuffer x,
                  const RecordAccess& record) = nullptr;
  // Replaces Merge.
  MergeResult (*merges)(BatchNormKernels& real,
                        const MergeCall& call) = nullptr;
  // Runs after Normalize. `y` holds the bytes from before the call.
  void (*normalized)(const NormalizeCall& call, ConstBuffer y) = nullptr;
  // Runs after BackwardReduce.
  void (*reduced)(int rank, Buffer dweight, Buffer dbias) = nullptr;
  // Run before BackwardReduce and before BackwardInput.
  void (*told_reduce)(BackwardCall& call) = nullptr;
  void (*told_input)(BackwardCall& call) = nullptr;
  // Runs after BackwardInput. `dy` holds the bytes from before the call.
  void (*input_gradient)(const BackwardCall& call, ConstBuffer dy) = nullptr;
  // Replaces the group's call.
  absl::Status (*runs)(Communicator& real, const Collective& call) = nullptr;
  // Replace Forward and Backward. `untracked` is the same layer without running
  // statistics.
  absl::Status (*forwards)(BatchNorm& real, BatchNorm& untracked,
                           BatchNorm::ForwardBuffers buffers) = nullptr;
  absl::Status (*backwards)(const BackwardsCall& call) = nullptr;
};

std::unique_ptr<BatchNormKernels> MakeCpuKernels();

// Returns the problems in which mutants are planted: a fixed random third of a
// part of the grid. The part has float32 and bfloat16, 1 and 3 ranks, 3 and 65
// channels. It also has every fusion at 3 ranks, with 3 and 64 channels.
std::vector<BatchNormProblem> MutantProblems();

// The ranks on which mutants run, and the kernels that they use.
struct LayerRanks {
  RankRunner run;
  std::function<absl::StatusOr<std::unique_ptr<BatchNormKernels>>(
      Communicator& group)>
      make_kernels;
  MemoryFactory allocate = HostMemory;
  bool has_float64 = true;
  bool has_blocks = true;  // Layout::kNchw16c.
};
LayerRanks CpuLayersOnThreads();

// Returns what MeasureRun says of the mutated layer, by variant. All variants
// run in one group. If `twice`, each variant runs twice, and CheckSameBits
// compares the two runs.
std::vector<absl::Status> CheckMutated(
    const LayerRanks& ranks, const BatchNormMutation& mutation, bool twice,
    const SolvedProblem& problem,
    const std::vector<BatchNormVariant>& variants);

// A mutant with its mutation.
struct BatchNormMutant {
  BatchNormMutant(Mutant mutant, const BatchNormMutation& mutation)
      : mutant(std::move(mutant)), mutation(mutation) {}

  Mutant mutant;  // Has no functions that plant it.
  BatchNormMutation mutation;
};

// Returns the mutants that must show in at least one case on these ranks.
MutantSuite BatchNormMutants(const LayerRanks& ranks = CpuLayersOnThreads());

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_MUTANTS_H_
