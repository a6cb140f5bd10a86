// Mutants of the values that enter the running statistics.
#include "conformance/syncbn/running_mutants.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "conformance/mutant.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {
namespace {

std::vector<double> NumbersOf(const Buffer& buffer) {
  std::vector<double> numbers;
  for (int64_t c = 0; c < buffer.count; ++c) {
    numbers.push_back(GetNumber(buffer, c));
  }
  return numbers;
}

// Changes the running variance as if the batch's variance were multiplied by
// `factor`.
void ScaleEntered(const MergeCall& call, const std::vector<double>& before,
                  double factor) {
  const double w = call.options.weight_of_batch;
  for (int64_t c = 0; c < call.running.variance.count; ++c) {
    const double kept = (1 - w) * before[static_cast<size_t>(c)];
    const double entered = GetNumber(call.running.variance, c) - kept;
    SetNumber(call.running.variance, c, kept + entered * factor);
  }
}

// Returns the number of values that the merge found on all ranks, or 0 if it
// failed. On a device, waits until the merge is done, so that the host may read
// its results.
int64_t MergedValues(BatchNormKernels& real, const MergeCall& call,
                     const MergeResult& result) {
  if (!result.ok()) return 0;
  const absl::StatusOr<int64_t> values = real.ReadCount(call.saved);
  return values.ok() ? *values : 0;
}

MergeResult MergeWithOwnCount(BatchNormKernels& real, const MergeCall& call) {
  const std::vector<double> before = NumbersOf(call.running.variance);
  const MergeResult result = real.Merge(call);
  const int64_t values = MergedValues(real, call, result);
  const RecordAccess own(call.record, const_cast<std::byte*>(call.gathered) +
                                          call.own * call.record.size_bytes());
  if (values < 2 || !call.options.unbiased_running_variance) return result;
  const auto n = static_cast<double>(values);
  const auto k = static_cast<double>(own.count());
  ScaleEntered(call, before, k / (k - 1) * (n - 1) / n);
  return result;
}

MergeResult MergeTwice(BatchNormKernels& real, const MergeCall& call) {
  const MergeResult result = real.Merge(call);
  return result.ok() ? real.Merge(call) : result;
}

// Enters the variance of the normalised values: v / (v + epsilon), which is 1 -
// epsilon r^2.
MergeResult MergeNormalizedVariance(BatchNormKernels& real,
                                    const MergeCall& call) {
  const std::vector<double> before = NumbersOf(call.running.variance);
  const MergeResult result = real.Merge(call);
  const int64_t values = MergedValues(real, call, result);
  if (values < 2) return result;
  const double w = call.options.weight_of_batch;
  const auto n = static_cast<double>(values);
  const double times = call.options.unbiased_running_variance ? n / (n - 1) : 1;
  const RecordAccess saved(call.record, call.saved);
  for (int64_t c = 0; c < call.running.variance.count; ++c) {
    const double r = GetNumber(saved.second, c);
    const double variance = (1 - call.options.epsilon * r * r) * times;
    SetNumber(call.running.variance, c,
              (1 - w) * before[static_cast<size_t>(c)] + w * variance);
  }
  return result;
}

// Enters the mean of the normalised values too, which is 0.
MergeResult MergeNormalized(BatchNormKernels& real, const MergeCall& call) {
  const std::vector<double> mean = NumbersOf(call.running.mean);
  const MergeResult result = MergeNormalizedVariance(real, call);
  if (MergedValues(real, call, result) < 2) return result;
  const double w = call.options.weight_of_batch;
  for (int64_t c = 0; c < call.running.mean.count; ++c) {
    SetNumber(call.running.mean, c, (1 - w) * mean[static_cast<size_t>(c)]);
  }
  return result;
}

MergeResult MergeUntracked(BatchNormKernels& real, const MergeCall& call) {
  MergeCall told = call;
  told.running = {};
  return real.Merge(told);
}

// Enters only this rank's batch, but normalises with the whole.
MergeResult MergeOwnIntoRunning(BatchNormKernels& real, const MergeCall& call) {
  MergeCall own = call;
  own.gathered += call.own * call.record.size_bytes();
  own.ranks = 1;
  const auto entered = real.Merge(own);
  return entered.ok() ? MergeUntracked(real, call) : entered;
}

// Adds one unit in the last place, on all ranks but the first.
MergeResult MergeWithRounding(BatchNormKernels& real, const MergeCall& call) {
  const MergeResult result = real.Merge(call);
  if (MergedValues(real, call, result) < 2 || call.own == 0) return result;
  if (!call.running.tracked()) return result;
  const double value = GetNumber(call.running.mean, 0);
  const double up =
      call.running.mean.type == DataType::kFloat64
          ? std::nextafter(value, std::numeric_limits<double>::infinity())
          : std::nextafter(static_cast<float>(value),
                           std::numeric_limits<float>::infinity());
  SetNumber(call.running.mean, 0, up);
  return result;
}

absl::Status CountTwice(BatchNorm& real, BatchNorm&,
                        BatchNorm::ForwardBuffers buffers) {
  const absl::Status status = real.Forward(buffers);
  if (status.ok() && buffers.training && buffers.running.tracked()) {
    ++*buffers.running.batches;
  }
  return status;
}

MergeResult MergeOtherVariance(BatchNormKernels& real, const MergeCall& call) {
  MergeCall other = call;
  other.options.unbiased_running_variance =
      !call.options.unbiased_running_variance;
  return real.Merge(other);
}

}  // namespace

std::vector<BatchNormMutant> RunningMutants() {
  return {
      BatchNormMutant(
          {"TracksBiasedVariance", "torch: the running variance is of M2 / n",
           "RunningVariance", "as if the variance were biased"},
          {.shows = {.one_pixel = true, .tracked = true, .semantics = "torch"},
           .merges = MergeOtherVariance}),
      BatchNormMutant(
          {"TracksUnbiasedVariance",
           "paddle: the running variance is of M2 / (n - 1)", "RunningVariance",
           "as if the variance were unbiased"},
          {.shows = {.one_pixel = true, .tracked = true, .semantics = "paddle"},
           .merges = MergeOtherVariance}),
      BatchNormMutant(
          {"CountsOwnInVariance", "torch: n / (n - 1) is of this rank's count",
           "RunningVariance",
           "as if this rank's own count were the global one"},
          {.shows = {.one_pixel = true,
                     .ranks = 2,
                     .tracked = true,
                     .semantics = "torch",
                     .also =
                         [](const BatchNormProblem& problem) {
                           return problem.batches != RankBatches::kOneSample;
                         }},
           .merges = MergeWithOwnCount}),
      BatchNormMutant(
          {"TracksNormalizedVariance",
           "the variance is taken after normalising", "RunningVariance",
           "as if the normalised values had entered"},
          {.shows = {.tracked = true}, .merges = MergeNormalizedVariance}),
      // Mutants that enter the wrong batch, or use the wrong weight.
      BatchNormMutant(
          {"InvertsMomentum", "momentum is the weight of the other one",
           "RunningMean", "as if momentum were inverted"},
          {.shows = {.tracked = true, .momentum = true},
           .told =
               [](BatchNormOptions& options) {
                 if (options.momentum) options.momentum = 1 - *options.momentum;
               }}),
      BatchNormMutant(
          {"UpdatesTwice", "a batch enters the running statistics twice",
           "RunningMean", "as if the batch had entered twice"},
          {.shows = {.tracked = true}, .merges = MergeTwice}),
      BatchNormMutant(
          {"TracksNormalizedValues",
           "mean and variance are taken after normalising", "RunningMean",
           "as if the normalised values had entered"},
          {.shows = {.tracked = true}, .merges = MergeNormalized}),
      BatchNormMutant({"TracksNothing", "nothing enters the running statistics",
                       "RunningMean", "as if nothing had entered"},
                      {.shows = {.tracked = true}, .merges = MergeUntracked}),
      BatchNormMutant(
          {"TracksOwnBatch",
           "a rank's own batch alone enters its running statistics",
           "RunningMean", "as if this rank's own batch had entered"},
          {.shows = {.pixels = true,
                     .ranks = 2,
                     .tracked = true,
                     .also =
                         [](const BatchNormProblem& problem) {
                           return problem.batches != RankBatches::kEmptyRank;
                         }},
           .merges = MergeOwnIntoRunning}),
      // Mutants whose ranks no longer agree, or count batches wrongly.
      BatchNormMutant(
          {"RoundsByRank", "the ranks' running means differ in the last bit",
           "RanksAgree", "has other bits than on rank 0"},
          {.shows = {.ranks = 2, .tracked = true},
           .merges = MergeWithRounding}),
      BatchNormMutant(
          {"CountsBatchesTwice", "the count of batches grows by two",
           "BatchCount", "2 batches are counted, not 1"},
          {.shows = {.tracked = true, .momentum = true},
           .forwards = CountTwice}),
  };
}

}  // namespace lockstep::conformance
