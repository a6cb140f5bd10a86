// Mutants of a batch's sums, of the statistics that a layer normalises with,
// and of y.
#include "conformance/syncbn/statistics_mutants.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "conformance/mutant.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {
namespace {

using NormalizeCall = BatchNormKernels::NormalizeCall;

constexpr int64_t kFirstChannels = 64;

// Calls fn(value, n, i) for each value of a channel.
template <typename Fn>
void ForValues(const ActivationShape& shape, ConstBuffer x, int64_t c, Fn fn) {
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t i = 0; i < shape.hw; ++i) {
      fn(GetNumber(x, PlaceOf(shape, n, c, i)), n, i);
    }
  }
}

// Computes the variance as E[x^2] - E[x]^2, with sums rounded to `type`. If
// `type` is float32, all later steps are rounded too.
void Square(DataType type, const ActivationShape& shape, ConstBuffer x,
            const RecordAccess& record) {
  const auto count = static_cast<double>(shape.values_per_channel());
  const DataType then = type == DataType::kFloat32 ? type : DataType::kFloat64;
  for (int64_t c = 0; shape.n > 0 && c < shape.c; ++c) {
    double sum = 0;
    double squares = 0;
    ForValues(shape, x, c, [&](double value, int64_t, int64_t) {
      sum = RoundTo(type, sum + value);
      squares = RoundTo(type, squares + RoundTo(type, value * value));
    });
    const double mean = RoundTo(then, sum / count);
    const double variance = RoundTo(
        then, RoundTo(then, squares / count) - RoundTo(then, mean * mean));
    SetNumber(record.second, c, RoundTo(then, std::max(0.0, variance) * count));
  }
}

void SquareInFloat(const ActivationShape& shape, ConstBuffer x,
                   const RecordAccess& record) {
  Square(DataType::kFloat32, shape, x, record);
}

void SquareInOwnType(const ActivationShape& shape, ConstBuffer x,
                     const RecordAccess& record) {
  Square(x.type, shape, x, record);
}

// Sets mean and M2 of the values that `takes` selects. Divides by `count`,
// which may be larger than the number of these values.
template <typename Takes>
void SetMoments(const ActivationShape& shape, ConstBuffer x, double count,
                const RecordAccess& record, Takes takes) {
  for (int64_t c = 0; shape.n > 0 && c < shape.c; ++c) {
    double mean = 0;
    ForValues(shape, x, c, [&](double value, int64_t n, int64_t i) {
      if (takes(n, i)) mean += value / count;
    });
    double m2 = 0;
    ForValues(shape, x, c, [&](double value, int64_t n, int64_t i) {
      if (takes(n, i)) m2 += (value - mean) * (value - mean);
    });
    SetNumber(record.mean, c, mean);
    SetNumber(record.second, c, m2);
  }
}

void SkipTheLastOfRows(const ActivationShape& shape, ConstBuffer x,
                       const RecordAccess& record) {
  SetMoments(shape, x, static_cast<double>(shape.values_per_channel()), record,
             [&](int64_t, int64_t i) { return i < shape.hw - 1; });
}

void SkipTheLastOfBatch(const ActivationShape& shape, ConstBuffer x,
                        const RecordAccess& record) {
  SetMoments(shape, x, static_cast<double>(shape.values_per_channel()), record,
             [&](int64_t n, int64_t i) {
               return n < shape.n - 1 || i < shape.hw - 1;
             });
}

// Takes the first half of the samples for the whole.
void TakeOneSegment(const ActivationShape& shape, ConstBuffer x,
                    const RecordAccess& record) {
  const int64_t half = shape.n / 2;
  SetMoments(shape, x, static_cast<double>(half * shape.hw), record,
             [half](int64_t n, int64_t) { return n < half; });
  const double times = static_cast<double>(shape.n) / static_cast<double>(half);
  for (int64_t c = 0; c < shape.c; ++c) {
    SetNumber(record.second, c, GetNumber(record.second, c) * times);
  }
}

void LeaveChannelsOut(const ActivationShape& shape, ConstBuffer,
                      const RecordAccess& record) {
  for (int64_t c = kFirstChannels; c < shape.c; ++c) {
    SetNumber(record.mean, c, 0);
    SetNumber(record.second, c, 0);
  }
}

// Returns problems with so many channels that in at least one of them chance
// does not hide the mutant.
std::vector<BatchNormProblem> FarProblems(
    std::initializer_list<DataType> types) {
  std::vector<BatchNormProblem> far;
  for (const DataType type : types) {
    for (const RankBatches batches : kAllBatches) {
      for (const int world_size : {1, 3}) {
        for (const auto& problem : ProblemsOf(world_size, type, batches)) {
          if (problem.offsets == Offsets::kFar && problem.channels == 65 &&
              problem.hw > 1) {
            far.push_back(problem);
          }
        }
      }
    }
  }
  return far;
}

// Merges the ranks' records as if all ranks had the same number of values.
template <bool empty_too>
MergeResult MergeWithEqualWeights(BatchNormKernels& real,
                                  const MergeCall& call) {
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
  if (values == 0) return real.Merge(call);
  MergeCall told = call;
  told.gathered = records;
  LOCKSTEP_RETURN_IF_ERROR(real.Merge(told));
  // On a device, waits for the merge.
  LOCKSTEP_RETURN_IF_ERROR(real.ReadCount(call.saved).status());
  RecordAccess(call.record, call.saved).set_count(values);
  return absl::OkStatus();
}

MergeResult MergeOwnAlone(BatchNormKernels& real, const MergeCall& call) {
  MergeCall told = call;
  told.gathered += call.own * call.record.size_bytes();
  told.ranks = 1;
  return real.Merge(told);
}

// Replaces the inverse deviation r by inverse(r, variance, epsilon, n).
template <typename Fn>
MergeResult MergeWith(BatchNormKernels& real, const MergeCall& call,
                      Fn inverse) {
  LOCKSTEP_RETURN_IF_ERROR(real.Merge(call));
  // On a device, waits for the merge.
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t values, real.ReadCount(call.saved));
  const RecordAccess saved(call.record, call.saved);
  const auto n = static_cast<double>(values);
  const double epsilon = call.options.epsilon;
  for (int64_t c = 0; c < call.record.channels; ++c) {
    const double r = GetNumber(saved.second, c);
    SetNumber(saved.second, c, inverse(r, 1 / (r * r) - epsilon, epsilon, n));
  }
  return absl::OkStatus();
}

MergeResult MergeWithEpsilonOutside(BatchNormKernels& real,
                                    const MergeCall& call) {
  return MergeWith(real, call,
                   [](double, double variance, double epsilon, double) {
                     return 1 / (std::sqrt(std::max(0.0, variance)) + epsilon);
                   });
}

MergeResult MergeUnbiased(BatchNormKernels& real, const MergeCall& call) {
  return MergeWith(
      real, call, [](double r, double variance, double epsilon, double n) {
        return n > 1 ? 1 / std::sqrt(variance * n / (n - 1) + epsilon) : r;
      });
}

void ScaleResidual(const NormalizeCall& call, ConstBuffer) {
  if (call.residual.count == 0 || call.weight.count == 0) return;
  const RecordAccess saved(RecordOf(call.shape.c, call.x.type),
                           call.saved.bytes());
  const ActivationShape& shape = call.shape;
  for (int64_t c = 0; c < shape.c; ++c) {
    ForValues(shape, call.x, c, [&](double x, int64_t n, int64_t i) {
      const int64_t at = PlaceOf(shape, n, c, i);
      const double z =
          (x - GetNumber(saved.mean, c)) * GetNumber(saved.second, c);
      const double y =
          (z + GetNumber(call.residual, at)) * GetNumber(call.weight, c) +
          GetNumber(call.bias, c);
      SetNumber(call.y, at, call.relu ? std::max(y, 0.0) : y);
    });
  }
}

void LeaveTheLastOut(const NormalizeCall& call, ConstBuffer y) {
  const int64_t size = SizeOf(call.y.type);
  const int64_t at = (call.shape.size() - 1) * size;
  std::memcpy(call.y.bytes() + at, y.bytes() + at, static_cast<size_t>(size));
}

absl::Status ForwardInOtherLayout(BatchNorm& real, BatchNorm&,
                                  BatchNorm::ForwardBuffers buffers) {
  Layout& layout = buffers.shape.layout;
  layout = layout == Layout::kNchw ? Layout::kNhwc : Layout::kNchw;
  return real.Forward(buffers);
}

absl::Status ForwardWithoutBlocks(BatchNorm& real, BatchNorm&,
                                  BatchNorm::ForwardBuffers buffers) {
  buffers.shape.layout = Layout::kNhwc;
  return real.Forward(buffers);
}

absl::Status EvaluateWithBatch(BatchNorm& real, BatchNorm& untracked,
                               BatchNorm::ForwardBuffers buffers) {
  if (buffers.training) return real.Forward(buffers);
  buffers.running = {};
  return untracked.Forward(buffers);
}

}  // namespace

std::vector<BatchNormMutant> StatisticsMutants() {
  return {
      BatchNormMutant(
          {"SquaresInFloat", "the variance is E[x^2] - E[x]^2, in float32",
           "Output", "as if the variance were E[x^2] - E[x]^2, in float32"},
          {.shows = {.values = 4},
           .problems =
               [] {
                 // Without bfloat16: its squares have 16 bits, so that float32
                 // adds 256 of them exactly and no error shows.
                 return FarProblems({DataType::kFloat32, DataType::kFloat16});
               },
           .moments = SquareInFloat}),
      BatchNormMutant(
          {"SquaresInOwnType",
           "the variance is E[x^2] - E[x]^2, in the type of x", "Output",
           "as if the variance were E[x^2] - E[x]^2, in the type of x"},
          {.shows = {.values = 4},
           .problems = [] { return FarProblems({DataType::kBFloat16}); },
           .moments = SquareInOwnType}),
      BatchNormMutant(
          {"StopsAtChannel64",
           "the statistics of channels from 64 on are not computed", "Output",
           "as if only the first 64 channels were computed"},
          {.shows = {.channels = kFirstChannels + 1, .values = 4},
           .moments = LeaveChannelsOut}),
      BatchNormMutant(
          {"SkipsTheLastValue",
           "the statistics leave out the last value of each row", "Output",
           "as if the statistics lacked the last value of each row"},
          {.shows = {.spiked = true, .values = 4},
           .moments = SkipTheLastOfRows}),
      BatchNormMutant({"SkipsTheLastOfTheBatch",
                       "the statistics leave out the last value of the batch",
                       "Output", "of every rank"},
                      {.shows = {.spiked = true, .values = 4},
                       .moments = SkipTheLastOfBatch}),
      BatchNormMutant(
          {"TakesOneSegment",
           "segments are merged as if all were like the first", "Output",
           "as if the first half of each rank's samples stood for all"},
          {.shows = {.tracked = true, .momentum = true, .semantics = "torch"},
           .problems = LargeProblems,
           .moments = TakeOneSegment}),
      BatchNormMutant(
          {"AveragesMeans",
           "the ranks' means and variances are merged without weights",
           "Output", "as if the ranks' means had equal weights"},
          {.shows = {.also =
                         [](const BatchNormProblem& problem) {
                           return problem.world_size == 3 &&
                                  (problem.batches == RankBatches::kUneven ||
                                   problem.batches == RankBatches::kEmptyRank);
                         }},
           .merges = MergeWithEqualWeights</*empty_too=*/false>}),
      BatchNormMutant({"TakesCountsAsFlags",
                       "a rank's count is 1, also where the rank is empty",
                       "Output", "as if an empty rank counted as one"},
                      {.shows = {.values = 4, .empty_rank = true},
                       .merges = MergeWithEqualWeights</*empty_too=*/true>}),
      BatchNormMutant({"UsesOwnStatistics",
                       "a rank normalises with the statistics of its own batch",
                       "Output", "as if this rank's own batch were the whole"},
                      {.shows = {.own_accepted = true, .ranks = 2},
                       .merges = MergeOwnAlone}),
      BatchNormMutant(
          {"PutsEpsilonOutside", "epsilon is added to the root of the variance",
           "Output", "as if epsilon stood outside the root"},
          {.shows = {.affine = true, .values = 4},
           .merges = MergeWithEpsilonOutside}),
      BatchNormMutant(
          {"NormalizesUnbiased",
           "the variance that is normalised with is divided by n - 1", "Output",
           "as if the variance were divided by n - 1"},
          {.shows = {.one_pixel = true, .values = 4}, .merges = MergeUnbiased}),
      BatchNormMutant(
          {"StopsBeforeTheLast", "the last element of y is not written",
           "Output", "as if it had not been written"},
          {.shows = {.outputs = true}, .normalized = LeaveTheLastOut}),
      BatchNormMutant(
          {"ScalesTheResidual", "the residual is added before the weight",
           "Output", "as if the residual were scaled by the weight"},
          {.shows = {.affine = true, .residual = true, .values = 4},
           .normalized = ScaleResidual}),
      BatchNormMutant(
          {"ConfusesLayouts",
           "channels first is read as channels last, and the other way",
           "Output", "as if the memory had another layout"},
          {.shows =
               {.pixels = true, .blocks = false, .channels = 2, .values = 4},
           .forwards = ForwardInOtherLayout}),
      BatchNormMutant(
          {"IgnoresBlocks", "blocks of channels are read as channels last",
           "Output", "as if blocks of channels had another layout"},
          {.shows = {.pixels = true, .blocks = true, .values = 4},
           .forwards = ForwardWithoutBlocks}),
      BatchNormMutant(
          {"EvaluatesWithBatch",
           "evaluation normalises with the batch, though the layer tracks",
           "Output", "as if this rank's own batch were used in evaluation"},
          {.shows = {.pixels = true, .values = 4, .tracked = true},
           .forwards = EvaluateWithBatch}),
  };
}

}  // namespace lockstep::conformance
