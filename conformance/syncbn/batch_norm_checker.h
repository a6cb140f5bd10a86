// Runs a layer through a problem on one rank, or on every rank of a new group,
// and compares the results with the reference.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECKER_H_

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

// Compares a run with the reference. `ranks` is indexed by rank. Each check
// runs on every step, in this order:
//
//   Status            A rank refuses one value per channel if the semantics say
//                     so: in one line, equal on every rank, with the running
//                     statistics unchanged. Nothing else is refused.
//   Untouched         Inputs and the memory beside outputs are unchanged.
//   Ready             gradients_ready was called once, with final gradients.
//   Output            y is the reference's, within its bound.
//   RunningMean       The running mean follows from its value before the step.
//   RunningVariance   The running variance follows likewise.
//   BatchCount        The count of batches, if there is one, grows by one.
//   BiasGradient      The sum of the ranks' dbias is the reference's.
//   WeightGradient    The sum of the ranks' dweight is the reference's.
//   InputGradient     dx is the reference's.
//   ResidualGradient  dresidual is the reference's, to the bit.
//   RanksAgree        All ranks have the same bits of running statistics.
//
// Each step starts from the statistics that the layer had, so no tolerance
// grows with the number of steps. Errors: kDataLoss, "NAME: CASE, step S, rank
// R: ..." with the element, its error, the bound, and the cause if the checks
// can tell.
//
// Without an error, returns the largest quotient of any number's error and its
// bound: at most 1.
absl::StatusOr<double> MeasureRun(const SolvedProblem& solved,
                                  const BatchNormVariant& variant,
                                  std::span<const RankRun> ranks);

// Checks "SameBits": two runs of the same case must give the same bits on every
// rank. Error: kDataLoss, with the same message format. `between` says how the
// runs differ.
absl::Status CheckSameBits(const SolvedProblem& solved,
                           const BatchNormVariant& variant,
                           std::span<const RankRun> runs,
                           std::span<const RankRun> others,
                           const std::string& between);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECKER_H_
