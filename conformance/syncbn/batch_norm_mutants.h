// Mutants of SyncBatchNorm, one layer: what the checks of batch norm must
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
#include "conformance/syncbn/batch_norm_checker.h"
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
  const BatchNorm::Backwards& buffers;
  absl::FunctionRef<void()> ready;
};

using MergeResult = absl::Status;

// The cases in which a mutant must be rejected: those that have all of it.
struct Shows {
  bool affine = false;
  bool relu = false;
  bool residual = false;
  bool pixels = false;     // Several,
  bool one_pixel = false;  // or so few values that n and n - 1 differ by more
                           // than rounding.
  std::optional<bool> blocks = std::nullopt;  // Whether channels are in blocks.
  int64_t channels = 1;                       // At least.
  bool spiked = false;
  // Values per channel in the batch, at least: from 4 on dx does not vanish,
  // and chance does not hide a wrong statistic.
  int64_t values = 0;
  bool one_value = false;     // Exactly.
  bool outputs = false;       // y is computed: the batch is not refused,
  bool own_accepted = false;  // nor would a rank's own be.
  int ranks = 0;              // That have values, at least.
  bool empty_rank = false;    // One of several.
  bool tracked = false;       // Batches enter running statistics,
  bool momentum = false;      // by momentum.
  const char* semantics = nullptr;
  bool (*also)(const BatchNormProblem& problem) = nullptr;

  bool In(const BatchNormProblem& problem,
          const BatchNormVariant& variant) const;
};

// What is done to the kernels, the group or the layer. The hooks that are null
// change nothing.
struct BatchNormMutation {
  using BackwardCall = BatchNormKernels::BackwardCall;
  using NormalizeCall = BatchNormKernels::NormalizeCall;

  Shows shows;
  // Where it is planted, if not in MutantProblems().
  std::vector<BatchNormProblem> (*problems)() = nullptr;
  // Whether it leaves the group unusable, so that each case has its own.
  bool breaks_group = false;

  // What the layer is told instead.
  void (*told)(BatchNormOptions& options) = nullptr;
  // After ComputeMoments.
  void (*moments)(const ActivationShape& shape, ConstBuffer x,
                  const RecordAccess& record) = nullptr;
  // In place of Merge.
  MergeResult (*merges)(BatchNormKernels& real,
                        const MergeCall& call) = nullptr;
  // After Normalize; y as it was before.
  void (*normalized)(const NormalizeCall& call, ConstBuffer y) = nullptr;
  // After BackwardReduce.
  void (*reduced)(int rank, Buffer dweight, Buffer dbias) = nullptr;
  // Before BackwardReduce, and before BackwardInput.
  void (*told_reduce)(BackwardCall& call) = nullptr;
  void (*told_input)(BackwardCall& call) = nullptr;
  // After BackwardInput; dy as it was before.
  void (*input_gradient)(const BackwardCall& call, ConstBuffer dy) = nullptr;
  // In place of the group's call.
  absl::Status (*runs)(Communicator& real, const Collective& call) = nullptr;
  // In place of Forward and Backward. `untracked` is a layer that tracks
  // nothing and is otherwise the same.
  absl::Status (*forwards)(BatchNorm& real, BatchNorm& untracked,
                           BatchNorm::Forwards buffers) = nullptr;
  absl::Status (*backwards)(const BackwardsCall& call) = nullptr;
};

std::unique_ptr<BatchNormKernels> MakeCpuKernels();

// Where mutants are planted: in a third, drawn once, of a part of the grid:
// float32 and bfloat16, 1 and 3 ranks, 3 and 65 channels; fused with everything
// at 3 ranks, 64 channels too.
std::vector<BatchNormProblem> MutantProblems();

// Where mutants run, and over which kernels.
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

// What MeasureRun says of a layer with the mutation, by variant, all run in one
// group; if `twice`, in two runs, and what CheckSameBits says of them.
std::vector<absl::Status> CheckMutated(
    const LayerRanks& ranks, const BatchNormMutation& mutation, bool twice,
    const SolvedProblem& problem,
    const std::vector<BatchNormVariant>& variants);

// A mutant and what it does.
struct Planted {
  Planted(Mutant mutant, const BatchNormMutation& mutation)
      : mutant(std::move(mutant)), mutation(mutation) {}

  Mutant mutant;  // Without a way to plant it.
  BatchNormMutation mutation;
};

// In the batch's sums, statistics and y; in running statistics; in gradients,
// and in how the layer is called and what it leaves.
std::vector<Planted> StatisticsMutants();
std::vector<Planted> RunningMutants();
std::vector<Planted> GradientMutants();
// Those that show somewhere on these ranks.
MutantSuite BatchNormMutants(const LayerRanks& ranks = CpuLayersOnThreads());

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_MUTANTS_H_
