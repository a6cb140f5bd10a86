// Runs a layer through a problem on one rank, or on every rank of a new group,
// and holds what came of it to the reference.
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

// Makes the layer of one rank.
using LayerFactory = std::function<absl::StatusOr<std::unique_ptr<BatchNorm>>(
    const BatchNormOptions& options, Communicator& group)>;

// What one rank has after one step: bytes as the layer left them.
struct RankOutputs {
  std::string y;
  std::string dx;
  std::string dresidual;
  std::string dweight;
  std::string dbias;
  std::string running_mean;
  std::string running_variance;
  int64_t batches = 0;
  // What the layer did that it may not: wrote to its inputs or beside its
  // outputs ("Untouched: ..."), did not call `gradients_ready` once, with the
  // final gradients ("Ready: ..."). Empty: nothing.
  std::string complaint;
  absl::Status status;  // Of Forward, or else of Backward.
};

inline constexpr std::pair<const char*, std::string RankOutputs::*>
    kOutputFields[] = {{"y", &RankOutputs::y},
                       {"dx", &RankOutputs::dx},
                       {"dresidual", &RankOutputs::dresidual},
                       {"dweight", &RankOutputs::dweight},
                       {"dbias", &RankOutputs::dbias},
                       {"running mean", &RankOutputs::running_mean},
                       {"running variance", &RankOutputs::running_variance}};

// What each byte of outputs holds before, but of those in an input's place:
// NaN in every type of float, of bits that no computation gives.
inline constexpr char kUnwritten = '\xff';

// Memory of a rank that the layer can use and the host too, aligned to 64.
using MemoryFactory =
    std::function<std::shared_ptr<void>(Communicator& group, size_t bytes)>;
std::shared_ptr<void> HostMemory(Communicator& group, size_t bytes);

// Of one rank, by step.
using RankRun = std::vector<RankOutputs>;

// SyncBatchNorm over kernels of its own.
using KernelsFactory =
    std::function<absl::StatusOr<std::unique_ptr<BatchNormKernels>>()>;
LayerFactory SyncBatchNormOver(const KernelsFactory& make_kernels);

// Trains the layer twice and evaluates it once, for each problem and variant,
// all in one group. Outputs hold NaN before; in step 1 no buffer of activations
// or parameters is aligned to more than its elements. Gives the runs of each
// problem by variant, then by rank. Error: what the first rank got that could
// not join the group or make the layer, or died.
using VariantRuns = std::vector<std::vector<RankRun>>;
absl::StatusOr<std::vector<VariantRuns>> RunProblems(
    const RankRunner& run, std::span<const SolvedProblem> problems,
    std::span<const BatchNormVariant> variants, const LayerFactory& make,
    const MemoryFactory& allocate = HostMemory);

// The same of one problem.
absl::StatusOr<VariantRuns> RunVariants(
    Backend backend, const SolvedProblem& solved,
    std::span<const BatchNormVariant> variants, const LayerFactory& make,
    const RunRanksOptions& options = {});

// `ranks` is by rank. Asks in this order, each of every step:
//
//   Status            is one value per channel refused where the semantics say
//                     so, in one line and the same on every rank, with the
//                     running statistics left alone, and is nothing else?
//   Untouched         are inputs and the memory beside outputs as they were?
//   Ready             was gradients_ready called once, with final gradients?
//   Output            is y the reference's, within its bound?
//   RunningMean       is the running mean, from what it was before the step?
//   RunningVariance   is the running variance, likewise?
//   BatchCount        has the count of batches grown by one, if there are any?
//   BiasGradient      do the ranks' dbias add up to the reference's?
//   WeightGradient    do the ranks' dweight?
//   InputGradient     is dx the reference's?
//   ResidualGradient  is dresidual, to the bit?
//   RanksAgree        have all ranks the same bits of running statistics?
//
// As each step starts from the statistics that the layer had, no tolerance
// grows with the number of steps. Errors: kDataLoss, "NAME: CASE, step S, rank
// R: ..." with the element, by how much it is off, the bound, and the cause
// where it can be told.
//
// Where there is no error, returns the largest that any number is off, over its
// bound: at most 1.
absl::StatusOr<double> MeasureRun(const SolvedProblem& solved,
                                  const BatchNormVariant& variant,
                                  std::span<const RankRun> ranks);

// SameBits: whether two runs of the same case gave the same bits on every rank.
// Error: kDataLoss, likewise; `between` is how the runs differ.
absl::Status CheckSameBits(const SolvedProblem& solved,
                           const BatchNormVariant& variant,
                           std::span<const RankRun> runs,
                           std::span<const RankRun> others,
                           const std::string& between);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECKER_H_
