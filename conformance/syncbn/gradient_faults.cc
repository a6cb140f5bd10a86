// Faults in what comes backward.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/buffer.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/faulty_batch_norm.h"
#include "conformance/syncbn/plain_kernels.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {
namespace {

using BackwardCall = BatchNormKernels::BackwardCall;

// Enough for dx not to vanish.
bool HasGradients(const BatchNormProblem& problem) {
  return ValuesOf(problem, 0) >= 4;
}

bool HasOthers(const BatchNormProblem& problem, const BatchNormVariant&) {
  return RanksWithValues(problem, 0) > 1 && HasGradients(problem);
}

bool HasOtherParameters(const BatchNormProblem& problem,
                        const BatchNormVariant& variant) {
  return problem.affine && HasOthers(problem, variant);
}

void Clear(Buffer buffer) {
  if (buffer.count > 0) {
    std::memset(buffer.data, 0, static_cast<size_t>(buffer.size_bytes()));
  }
}

// One half of the sums [2, c].
void ClearHalf(Buffer sums, int half) {
  const int64_t channels = sums.count / 2;
  Clear(sums.Part(half * channels, channels));
}

// The all-reduce of sums gives what this rank gave.
absl::Status ReduceNothing(Communicator& real, const Collective& call) {
  return call.operation == Operation::kAllReduce ? absl::OkStatus()
                                                 : real.Run(call);
}

absl::Status ReduceParametersToo(BatchNorm& real, Communicator& group,
                                 BatchNorm::Backwards buffers,
                                 BatchNormFault::Ready ready) {
  absl::Status status;
  LOCKSTEP_RETURN_IF_ERROR(real.Backward(buffers, [&] {
    if (buffers.training && buffers.dweight.count > 0) {
      status = group.AllReduce(buffers.dweight);
      if (status.ok()) status = group.AllReduce(buffers.dbias);
    }
    ready();
  }));
  return status;
}

std::vector<BatchNormFault> InputGradientFaults() {
  const auto with_gradients = [](const BatchNormProblem& problem,
                                 const BatchNormVariant&) {
    return HasGradients(problem);
  };
  return {
      {.name = "GivesNoInputGradient",
       .bug = "dx is 0",
       .check = "InputGradient",
       .says = "as if it was 0",
       .shows = with_gradients,
       .input_gradient = [](const BackwardCall&, ConstBuffer, Buffer dx,
                            Buffer) { Clear(dx); }},
      {.name = "MissesTheCrossTerm",
       .bug = "dx lacks z sum(g z) / n",
       .check = "InputGradient",
       .says = "as if the term of sum g z were missing",
       .shows = with_gradients,
       .told_input = [](BackwardCall&, Buffer sums) { ClearHalf(sums, 1); }},
      {.name = "MissesTheMeanTerm",
       .bug = "dx lacks sum(g) / n",
       .check = "InputGradient",
       .says = "as if the term of sum g were missing",
       .shows = with_gradients,
       .told_input = [](BackwardCall&, Buffer sums) { ClearHalf(sums, 0); }},
      {.name = "TakesStatisticsAsConstants",
       .bug = "dx is weight r g, as in evaluation",
       .check = "InputGradient",
       .says = "as if mean and variance were constants",
       .shows = with_gradients,
       .told_input = [](BackwardCall&, Buffer sums) { Clear(sums); }},
      {.name = "DoesNotReduceSums",
       .bug = "the sums of backward stay each rank's own",
       .check = "InputGradient",
       .says = "as if the sums were this rank's own, over the global count",
       .shows = HasOthers,
       .runs = ReduceNothing},
  };
}

// In what ReLU lets through.
std::vector<BatchNormFault> ReluFaults() {
  return {
      {.name = "LetsEveryGradientThrough",
       .bug = "dx is of dy, not of what ReLU let through",
       .check = "InputGradient",
       .says = "as if ReLU let every gradient through",
       .shows =
           [](const BatchNormProblem& problem, const BatchNormVariant&) {
             return HasRelu(problem.fused) && ValuesOf(problem, 0) >= 4 &&
                    problem.hw > 1;
           },
       .told_input = [](BackwardCall& call, Buffer) { call.relu = false; }},
      {.name = "GivesTheResidualEverything",
       .bug = "dresidual is dy, not what ReLU let through",
       .check = "ResidualGradient",
       .says = "as if ReLU let every gradient through",
       .shows =
           [](const BatchNormProblem& problem, const BatchNormVariant&) {
             return HasRelu(problem.fused) && HasResidual(problem.fused) &&
                    HasGradients(problem) && problem.hw > 1;
           },
       .input_gradient =
           [](const BackwardCall&, ConstBuffer dy, Buffer, Buffer dresidual) {
             if (dresidual.count == 0) return;
             std::memcpy(dresidual.data, dy.data,
                         static_cast<size_t>(dy.size_bytes()));
           }},
      {.name = "SumsEveryGradient",
       .bug = "dweight and dbias are of dy, not of what ReLU let through",
       .check = "BiasGradient",
       .says = "as if ReLU let every gradient through",
       .shows =
           [](const BatchNormProblem& problem, const BatchNormVariant&) {
             return HasRelu(problem.fused) && problem.affine &&
                    HasGradients(problem) && problem.hw > 1;
           },
       .told_reduce = [](BackwardCall& call) { call.relu = false; }},
  };
}

std::vector<BatchNormFault> ParameterFaults() {
  return {
      {.name = "LosesOtherWeightGradients",
       .bug = "dweight is rank 0's alone",
       .check = "WeightGradient",
       .says = "as if the other ranks' parts were lost",
       .shows = HasOtherParameters,
       .reduced =
           [](int rank, Buffer dweight, Buffer) {
             if (rank > 0) Clear(dweight);
           }},
      {.name = "LosesOtherBiasGradients",
       .bug = "dbias is rank 0's alone",
       .check = "BiasGradient",
       .says = "as if the other ranks' parts were lost",
       .shows = HasOtherParameters,
       .reduced =
           [](int rank, Buffer, Buffer dbias) {
             if (rank > 0) Clear(dbias);
           }},
      {.name = "ReducesParametersTwice",
       .bug = "dweight and dbias are summed here and by the trainer again",
       .check = "BiasGradient",
       .says = "as if each rank had the sum over all ranks",
       .shows = HasOtherParameters,
       .backwards = ReduceParametersToo},
  };
}

}  // namespace

std::vector<BatchNormFault> GradientFaults() {
  std::vector<BatchNormFault> all = InputGradientFaults();
  for (const BatchNormFault& fault : ReluFaults()) all.push_back(fault);
  for (const BatchNormFault& fault : ParameterFaults()) all.push_back(fault);
  return all;
}

}  // namespace lockstep
