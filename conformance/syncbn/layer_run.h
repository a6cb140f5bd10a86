// Runs a layer through a problem on one rank, or on every rank of a new group.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_LAYER_RUN_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_LAYER_RUN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/rank_bytes.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/solved_problem.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep::conformance {

// Creates the layer of one rank.
using LayerFactory = std::function<absl::StatusOr<std::unique_ptr<BatchNorm>>(
    const BatchNormOptions& options, Communicator& group)>;

// The outputs of one rank after one step, as bytes that the layer wrote.
struct RankOutputs {
  std::string y;
  std::string dx;
  std::string dresidual;
  std::string dweight;
  std::string dbias;
  std::string running_mean;
  std::string running_variance;
  int64_t batches = 0;
  // The rule that the layer broke. "Untouched: ..." if it wrote to its inputs
  // or beside its outputs. "Ready: ..." if it did not call `gradients_ready`
  // exactly once, with final gradients. Empty if the layer broke no rule.
  std::string complaint;
  absl::Status status;  // Forward's, or Backward's if Forward succeeded.
};

inline constexpr std::pair<const char*, std::string RankOutputs::*>
    kOutputFields[] = {{"y", &RankOutputs::y},
                       {"dx", &RankOutputs::dx},
                       {"dresidual", &RankOutputs::dresidual},
                       {"dweight", &RankOutputs::dweight},
                       {"dbias", &RankOutputs::dbias},
                       {"running mean", &RankOutputs::running_mean},
                       {"running variance", &RankOutputs::running_variance}};

// The byte that fills each output before the call, except an output that
// overwrites an input. Such bytes are NaN in every float type, with bits that
// no computation gives.
inline constexpr char kUnwritten = '\xff';

// Allocates a rank's memory, aligned to 64 bytes. Both the layer and the host
// can use the memory.
using MemoryFactory =
    std::function<std::shared_ptr<void>(Communicator& group, size_t bytes)>;
std::shared_ptr<void> HostMemory(Communicator& group, size_t bytes);

// The outputs of one rank, by step.
using RankRun = std::vector<RankOutputs>;

// Creates SyncBatchNorm layers, each of which owns its kernels.
using KernelsFactory =
    std::function<absl::StatusOr<std::unique_ptr<BatchNormKernels>>()>;
LayerFactory SyncBatchNormOver(const KernelsFactory& make_kernels);

// Trains the layer twice and evaluates it once, for each problem and variant,
// all in one group. Outputs hold NaN before each call. In step 1 no buffer of
// activations or parameters is aligned to more than its elements. Returns the
// runs of each problem by variant, then by rank. Error: the first error of a
// rank that could not join the group, could not create the layer, or died.
using VariantRuns = std::vector<std::vector<RankRun>>;
absl::StatusOr<std::vector<VariantRuns>> RunProblems(
    const RankRunner& run, std::span<const SolvedProblem> problems,
    std::span<const BatchNormVariant> variants, const LayerFactory& make,
    const MemoryFactory& allocate = HostMemory);

// Runs one problem likewise, on ranks of `backend`.
absl::StatusOr<VariantRuns> RunVariants(
    Backend backend, const SolvedProblem& solved,
    std::span<const BatchNormVariant> variants, const LayerFactory& make,
    const RunRanksOptions& options = {});

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_LAYER_RUN_H_
