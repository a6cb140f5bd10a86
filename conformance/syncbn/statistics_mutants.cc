// Mutants of the statistics that a layer normalises with, and of y.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "conformance/mutant.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "conformance/syncbn/plain_kernels.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {
namespace {

using NormalizeCall = BatchNormKernels::NormalizeCall;

// Enough for a wrong statistic to be off by more than chance allows.
bool HasManyValues(const BatchNormProblem& problem) {
  return ValuesOf(problem, 0) >= 4;
}

absl::StatusOr<int64_t> Merge(BatchNormKernels& real, const MergeCall& call) {
  return real.Merge(call.record, call.gathered, call.ranks, call.options,
                    call.running, call.saved);
}

// Each rank's record as of as many values as any other's.
absl::StatusOr<int64_t> MergeWithEqualWeights(BatchNormKernels& real,
                                              const MergeCall& call,
                                              bool empty_too) {
  constexpr int64_t kCount = 1000;
  const int64_t size = call.record.size_bytes();
  std::vector<std::byte> copy(static_cast<size_t>(size * call.ranks) + 16);
  // Records are aligned to 16.
  std::byte* const records =
      copy.data() + (16 - reinterpret_cast<uintptr_t>(copy.data()) % 16) % 16;
  std::copy_n(call.gathered, size * call.ranks, records);
  int64_t values = 0;
  for (int rank = 0; rank < call.ranks; ++rank) {
    const RecordAccess record(call.record, records + rank * size);
    const int64_t count = record.count();
    values += count;
    if (count == 0 && !empty_too) continue;
    for (int64_t c = 0; c < call.record.channels; ++c) {
      const double scale = count == 0 ? 0 : kCount / static_cast<double>(count);
      SetNumber(record.second, c, GetNumber(record.second, c) * scale);
    }
    record.set_count(kCount);
  }
  if (values == 0) return Merge(real, call);
  MergeCall told = call;
  told.gathered = records;
  const auto result = Merge(real, told);
  RecordAccess(call.record, call.saved).set_count(values);
  return result.ok() ? absl::StatusOr<int64_t>(values) : result;
}

absl::StatusOr<int64_t> MergeMeansUnweighted(BatchNormKernels& real,
                                             const MergeCall& call) {
  return MergeWithEqualWeights(real, call, /*empty_too=*/false);
}

absl::StatusOr<int64_t> MergeWithFlags(BatchNormKernels& real,
                                       const MergeCall& call) {
  return MergeWithEqualWeights(real, call, /*empty_too=*/true);
}

absl::StatusOr<int64_t> MergeOwnAlone(BatchNormKernels& real,
                                      const MergeCall& call) {
  MergeCall told = call;
  told.gathered += call.own * call.record.size_bytes();
  told.ranks = 1;
  return Merge(real, told);
}

absl::StatusOr<int64_t> MergeWithEpsilonOutside(BatchNormKernels& real,
                                                const MergeCall& call) {
  const auto result = Merge(real, call);
  const RecordAccess saved(call.record, call.saved);
  const double epsilon = call.options.epsilon;
  for (int64_t c = 0; c < call.record.channels; ++c) {
    const double r = GetNumber(saved.second, c);
    const double variance = std::max(0.0, 1 / (r * r) - epsilon);
    SetNumber(saved.second, c, 1 / (std::sqrt(variance) + epsilon));
  }
  return result;
}

absl::StatusOr<int64_t> MergeUnbiased(BatchNormKernels& real,
                                      const MergeCall& call) {
  const auto result = Merge(real, call);
  const RecordAccess saved(call.record, call.saved);
  const auto n = static_cast<double>(saved.count());
  const double epsilon = call.options.epsilon;
  for (int64_t c = 0; n > 1 && c < call.record.channels; ++c) {
    const double r = GetNumber(saved.second, c);
    const double variance = (1 / (r * r) - epsilon) * n / (n - 1);
    SetNumber(saved.second, c, 1 / std::sqrt(variance + epsilon));
  }
  return result;
}

void ScaleResidual(const NormalizeCall& call, ConstBuffer) {
  if (call.residual.count == 0 || call.weight.count == 0) return;
  const RecordAccess saved(
      {.channels = call.shape.c, .type = StatisticsTypeOf(call.x.type)},
      const_cast<std::byte*>(call.saved));
  const ActivationShape& shape = call.shape;
  for (int64_t c = 0; c < shape.c; ++c) {
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t i = 0; i < shape.hw; ++i) {
        const int64_t at = PlaceOf(shape, n, c, i);
        const double z = (GetNumber(call.x, at) - GetNumber(saved.mean, c)) *
                         GetNumber(saved.second, c);
        const double y =
            (z + GetNumber(call.residual, at)) * GetNumber(call.weight, c) +
            GetNumber(call.bias, c);
        SetNumber(call.y, at, call.relu ? std::max(y, 0.0) : y);
      }
    }
  }
}

void LeaveTheLastOut(const NormalizeCall& call, ConstBuffer y) {
  const int64_t size = SizeOf(call.y.type);
  const int64_t at = (call.shape.size() - 1) * size;
  std::memcpy(call.y.bytes() + at, y.bytes() + at, static_cast<size_t>(size));
}

Layout Other(Layout layout) {
  return layout == Layout::kNchw ? Layout::kNhwc : Layout::kNchw;
}

absl::Status ForwardInOtherLayout(BatchNorm& real, BatchNorm&,
                                  BatchNorm::Forwards buffers) {
  buffers.shape.layout = Other(buffers.shape.layout);
  return real.Forward(buffers);
}

absl::Status EvaluateWithBatch(BatchNorm& real, BatchNorm& untracked,
                               BatchNorm::Forwards buffers) {
  if (buffers.training) return real.Forward(buffers);
  buffers.running = {};
  return untracked.Forward(buffers);
}

bool DiffersByWeights(const BatchNormProblem& problem,
                      const BatchNormVariant&) {
  return problem.world_size == 3 &&
         (problem.batches == RankBatches::kUneven ||
          problem.batches == RankBatches::kEmptyRank);
}

std::vector<Mutant> MergeMutants() {
  return {
      Planted({"AveragesMeans",
               "the ranks' means and variances are merged without weights",
               {"Output"},
               "as if the ranks' means had equal weights"},
              {.shows = DiffersByWeights, .merges = MergeMeansUnweighted}),
      Planted(
          {"TakesCountsAsFlags",
           "a rank's count is 1, also where the rank is empty",
           {"Output"},
           "as if an empty rank counted as one"},
          {.shows =
               [](const BatchNormProblem& problem, const BatchNormVariant&) {
                 return problem.batches == RankBatches::kEmptyRank &&
                        problem.world_size > 1 && HasManyValues(problem);
               },
           .merges = MergeWithFlags}),
      Planted(
          {"UsesOwnStatistics",
           "a rank normalises with the statistics of its own batch",
           {"Output"},
           "as if this rank's own batch were the whole"},
          {.shows =
               [](const BatchNormProblem& problem, const BatchNormVariant& v) {
                 return RanksWithValues(problem, 0) > 1 &&
                        !(v.semantics.refuses_one_value &&
                          problem.hw == 1);  // Then it is refused.
               },
           .merges = MergeOwnAlone}),
      Planted(
          {"PutsEpsilonOutside",
           "epsilon is added to the root of the variance",
           {"Output"},
           "as if epsilon stood outside the root"},
          {.shows =
               [](const BatchNormProblem& problem, const BatchNormVariant&) {
                 return problem.affine && HasManyValues(problem);
               },
           .merges = MergeWithEpsilonOutside}),
      Planted(
          {"NormalizesUnbiased",
           "the variance that is normalised with is divided by n - 1",
           {"Output"},
           "as if the variance were divided by n - 1"},
          {.shows =
               [](const BatchNormProblem& problem, const BatchNormVariant&) {
                 return problem.hw == 1 && HasManyValues(problem);
               },
           .merges = MergeUnbiased}),
  };
}

std::vector<Mutant> ElementMutants() {
  return {
      Planted(
          {"StopsBeforeTheLast",
           "the last element of y is not written",
           {"Output"},
           "as if it had not been written"},
          {.shows =
               [](const BatchNormProblem& problem, const BatchNormVariant& v) {
                 return ValuesOf(problem, 0) > 1 ||
                        (ValuesOf(problem, 0) == 1 &&
                         !v.semantics.refuses_one_value);
               },
           .normalized = LeaveTheLastOut}),
      Planted(
          {"ScalesTheResidual",
           "the residual is added before the weight",
           {"Output"},
           "as if the residual were scaled by the weight"},
          {.shows =
               [](const BatchNormProblem& problem, const BatchNormVariant&) {
                 return HasResidual(problem.fused) && problem.affine &&
                        HasManyValues(problem);
               },
           .normalized = ScaleResidual}),
      Planted(
          {"ConfusesLayouts",
           "channels first is read as channels last, and the other way",
           {"Output"},
           "as if the memory had the other layout"},
          {.shows =
               [](const BatchNormProblem& problem, const BatchNormVariant&) {
                 return problem.channels > 1 && problem.hw > 1 &&
                        HasManyValues(problem);
               },
           .forwards = ForwardInOtherLayout}),
      Planted(
          {"EvaluatesWithBatch",
           "evaluation normalises with the batch, though the layer tracks",
           {"Output"},
           "as if this rank's own batch were used in evaluation"},
          {.shows =
               [](const BatchNormProblem& problem, const BatchNormVariant& v) {
                 return v.tracking != Tracking::kNone &&
                        ValuesOf(problem, 2) >= 4 && problem.hw > 1;
               },
           .forwards = EvaluateWithBatch}),
  };
}

}  // namespace

std::vector<Mutant> StatisticsMutants() {
  std::vector<Mutant> all = MergeMutants();
  for (const Mutant& mutant : ElementMutants()) all.push_back(mutant);
  return all;
}

}  // namespace lockstep
