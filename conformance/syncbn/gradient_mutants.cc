// Mutants of the gradients, and of how a layer treats its callers, its memory
// and the group.
#include "conformance/syncbn/gradient_mutants.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/mutant.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {
namespace {

using BackwardCall = BatchNormKernels::BackwardCall;

void Clear(Buffer buffer) {
  if (buffer.count > 0) {
    std::memset(buffer.data, 0, static_cast<size_t>(buffer.size_bytes()));
  }
}

// Clears one half of the sums [2, c].
void ClearHalf(Buffer sums, int half) {
  const int64_t channels = sums.count / 2;
  Clear(sums.Part(half * channels, channels));
}

// Skips the all-reduce of sums, so that each rank keeps its own sums.
absl::Status ReduceNothing(Communicator& real, const Collective& call) {
  return call.operation == Operation::kAllReduce ? absl::OkStatus()
                                                 : real.Run(call);
}

absl::Status ReduceParametersToo(const BackwardsCall& call) {
  absl::Status status;
  LOCKSTEP_RETURN_IF_ERROR(call.real.Backward(call.buffers, [&] {
    if (call.buffers.training && call.buffers.dweight.count > 0) {
      status = call.group.AllReduce(call.buffers.dweight);
      if (status.ok()) status = call.group.AllReduce(call.buffers.dbias);
    }
    call.ready();
  }));
  return status;
}

absl::Status ParticipateUnlessEmpty(BatchNorm& real, BatchNorm&,
                                    BatchNorm::ForwardBuffers buffers) {
  return buffers.shape.n == 0 ? absl::OkStatus() : real.Forward(buffers);
}

absl::Status ReduceUnlessEmpty(const BackwardsCall& call) {
  if (call.buffers.shape.n > 0) {
    return call.real.Backward(call.buffers, call.ready);
  }
  call.ready();
  return absl::OkStatus();
}

absl::Status ReadyTwice(const BackwardsCall& call) {
  return call.real.Backward(call.buffers, [&] {
    call.ready();
    call.ready();
  });
}

absl::Status ReadyBefore(const BackwardsCall& call) {
  call.ready();
  return call.real.Backward(call.buffers, [] {});
}

absl::Status RefuseByBatch(BatchNorm& real, BatchNorm&,
                           BatchNorm::ForwardBuffers buffers) {
  const absl::Status status = real.Forward(buffers);
  if (status.ok() || buffers.shape.n > 0) return status;
  return absl::Status(status.code(),
                      "batch norm: one value per channel, on another rank");
}

// Adds one more unit in the last place to the first y in every call of a rank.
// Skips layers that normalise with constants, because their bounds are too
// narrow.
void DriftWithEveryCall(const BatchNormKernels::NormalizeCall& call,
                        ConstBuffer) {
  thread_local int calls = 0;
  const RecordAccess saved({.channels = call.shape.c}, call.saved.bytes());
  if (saved.count() == 0) return;
  const double y = GetNumber(call.y, 0);
  SetNumber(call.y, 0, y * (1 + ++calls * 0x1p-23));
}

}  // namespace

std::vector<BatchNormMutant> GradientMutants() {
  return {
      BatchNormMutant({"GivesNoInputGradient", "dx is 0", "InputGradient",
                       "as if it was 0"},
                      {.shows = {.values = 4},
                       .input_gradient = [](const BackwardCall& call,
                                            ConstBuffer) { Clear(call.dx); }}),
      BatchNormMutant(
          {"MissesTheCrossTerm", "dx lacks z sum(g z) / n", "InputGradient",
           "as if the term of sum g z were missing"},
          {.shows = {.values = 4},
           .told_input = [](BackwardCall& call) { ClearHalf(call.sums, 1); }}),
      BatchNormMutant(
          {"MissesTheMeanTerm", "dx lacks sum(g) / n", "InputGradient",
           "as if the term of sum g were missing"},
          {.shows = {.values = 4},
           .told_input = [](BackwardCall& call) { ClearHalf(call.sums, 0); }}),
      BatchNormMutant(
          {"TakesStatisticsAsConstants", "dx is weight r g, as in evaluation",
           "InputGradient", "as if mean and variance were constants"},
          {.shows = {.values = 4},
           .told_input = [](BackwardCall& call) { Clear(call.sums); }}),
      BatchNormMutant(
          {"DoesNotReduceSums", "the sums of backward stay each rank's own",
           "InputGradient",
           "as if the sums were this rank's own, over the global count"},
          {.shows = {.values = 4, .ranks = 2}, .runs = ReduceNothing}),
      // Mutants of the gradient that ReLU lets through.
      BatchNormMutant(
          {"LetsEveryGradientThrough",
           "dx is of dy, not of what ReLU let through", "InputGradient",
           "as if ReLU let every gradient through"},
          {.shows = {.relu = true, .pixels = true, .values = 4},
           .told_input = [](BackwardCall& call) { call.relu = false; }}),
      BatchNormMutant(
          {"GivesTheResidualEverything",
           "dresidual is dy, not what ReLU let through", "ResidualGradient",
           "as if ReLU let every gradient through"},
          {.shows =
               {.relu = true, .residual = true, .pixels = true, .values = 4},
           .input_gradient =
               [](const BackwardCall& call, ConstBuffer dy) {
                 if (call.dresidual.count == 0) return;
                 std::memcpy(call.dresidual.data, dy.data,
                             static_cast<size_t>(dy.size_bytes()));
               }}),
      BatchNormMutant(
          {"SumsEveryGradient",
           "dweight and dbias are of dy, not of what ReLU let through",
           "BiasGradient", "as if ReLU let every gradient through"},
          {.shows = {.affine = true, .relu = true, .pixels = true, .values = 4},
           .told_reduce = [](BackwardCall& call) { call.relu = false; }}),
      BatchNormMutant(
          {"LosesOtherWeightGradients", "dweight is rank 0's alone",
           "WeightGradient", "as if the other ranks' parts were lost"},
          {.shows = {.affine = true, .values = 4, .ranks = 2},
           .reduced =
               [](int rank, Buffer dweight, Buffer) {
                 if (rank > 0) Clear(dweight);
               }}),
      BatchNormMutant(
          {"LosesOtherBiasGradients", "dbias is rank 0's alone", "BiasGradient",
           "as if the other ranks' parts were lost"},
          {.shows = {.affine = true, .values = 4, .ranks = 2},
           .reduced =
               [](int rank, Buffer, Buffer dbias) {
                 if (rank > 0) Clear(dbias);
               }}),
      BatchNormMutant(
          {"ReducesParametersTwice",
           "dweight and dbias are summed here and by the trainer again",
           "BiasGradient", "as if each rank had the sum over all ranks"},
          {.shows = {.affine = true, .values = 4, .ranks = 2},
           .backwards = ReduceParametersToo}),
      BatchNormMutant(
          {"WritesToInput", "the first value of x is changed", "Untouched",
           "x has changed"},
          {.shows = {.outputs = true},
           .normalized =
               [](const BatchNormKernels::NormalizeCall& call, ConstBuffer) {
                 SetNumber({const_cast<void*>(call.x.data), 1, call.x.type}, 0,
                           0);
               }}),
      BatchNormMutant({"WritesBesideBias", "dbias has one element too many",
                       "Untouched", "bytes beside dbias have changed"},
                      {.shows = {.affine = true, .outputs = true},
                       .reduced =
                           [](int, Buffer, Buffer dbias) {
                             if (dbias.count > 0)
                               SetNumber(dbias, dbias.count, 0);
                           }}),
      BatchNormMutant({"IsReadyTwice", "gradients_ready is called twice",
                       "Ready", "gradients_ready was called 2 times"},
                      {.shows = {.outputs = true}, .backwards = ReadyTwice}),
      BatchNormMutant({"IsReadyTooEarly",
                       "gradients_ready is called before there are gradients",
                       "Ready", "changed after gradients_ready"},
                      {.shows = {.affine = true, .outputs = true},
                       .backwards = ReadyBefore}),
      BatchNormMutant(
          {"EmptyRankSkips",
           "a rank without samples skips the call, and joins the next",
           "Status", "left the group"},
          {.shows = {.empty_rank = true},
           .breaks_group = true,
           .forwards = ParticipateUnlessEmpty,
           .backwards = ReduceUnlessEmpty}),
      BatchNormMutant(
          {"AcceptsOneValue", "torch: one value per channel is trained on",
           "Status", "one value per channel is accepted"},
          {.shows = {.one_value = true, .semantics = "torch"},
           .told =
               [](BatchNormOptions& options) {
                 options.semantics.refuses_one_value = false;
                 options.semantics.unbiased_running_variance = false;
               }}),
      BatchNormMutant(
          {"RefusesOneValue", "paddle: one value per channel is refused",
           "Status", "failed: batch norm: one value per channel"},
          {.shows = {.one_value = true, .semantics = "paddle"},
           .told =
               [](BatchNormOptions& options) {
                 options.semantics.refuses_one_value = true;
               }}),
      BatchNormMutant(
          {"TellsEmptyRanksOtherwise",
           "only the rank that has the one value is told so in full", "Status",
           "; on rank 0 as: batch norm: one value per channel"},
          {.shows = {.one_value = true, .semantics = "torch"},
           .problems = [] { return OneValueProblems(/*world_size=*/2); },
           .forwards = RefuseByBatch}),
      BatchNormMutant(
          {"DependsOnTheRun", "the first y has other last bits in every run",
           "SameBits", "y has other bits in another run"},
          {.shows = {.pixels = true,
                     .outputs = true,
                     .also =
                         [](const BatchNormProblem& problem) {
                           return problem.type == DataType::kFloat32 &&
                                  problem.fused == Fused::kNothing;
                         }},
           .normalized = DriftWithEveryCall}),
  };
}

}  // namespace lockstep::conformance
