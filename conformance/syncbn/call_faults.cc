// Faults in how a layer treats its callers, its memory and the group.
#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/data_type.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/faulty_batch_norm.h"
#include "conformance/syncbn/plain_kernels.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/batch_norm_options.h"

namespace lockstep {
namespace {

// Whether y is computed at all.
bool HasOutputs(const BatchNormProblem& problem, const BatchNormVariant& v) {
  return ValuesOf(problem, 0) > (v.semantics.refuses_one_value ? 1 : 0);
}

bool HasOneValue(const BatchNormProblem& problem) {
  return ValuesOf(problem, 0) == 1;
}

absl::Status ParticipateUnlessEmpty(BatchNorm& real, BatchNorm&,
                                    BatchNorm::Forwards buffers) {
  return buffers.shape.n == 0 ? absl::OkStatus() : real.Forward(buffers);
}

absl::Status ReduceUnlessEmpty(BatchNorm& real, Communicator&,
                               BatchNorm::Backwards buffers,
                               BatchNormFault::Ready ready) {
  if (buffers.shape.n > 0) return real.Backward(buffers, ready);
  ready();
  return absl::OkStatus();
}

absl::Status ReadyTwice(BatchNorm& real, Communicator&,
                        BatchNorm::Backwards buffers,
                        BatchNormFault::Ready ready) {
  return real.Backward(buffers, [&] {
    ready();
    ready();
  });
}

absl::Status ReadyBefore(BatchNorm& real, Communicator&,
                         BatchNorm::Backwards buffers,
                         BatchNormFault::Ready ready) {
  ready();
  return real.Backward(buffers, [] {});
}

absl::Status RefuseByBatch(BatchNorm& real, BatchNorm&,
                           BatchNorm::Forwards buffers) {
  const absl::Status status = real.Forward(buffers);
  if (status.ok() || buffers.shape.n > 0) return status;
  return absl::Status(status.code(),
                      "batch norm: one value per channel, on another rank");
}

// One more unit in the last place of the first y in every call of a rank. Of
// constants there is no room for it in the bounds.
void DriftWithEveryCall(const BatchNormKernels::NormalizeCall& call,
                        ConstBuffer) {
  thread_local int calls = 0;
  const RecordView saved({.channels = call.shape.c},
                         const_cast<std::byte*>(call.saved));
  if (saved.count() == 0) return;
  const double y = GetNumber(call.y, 0);
  SetNumber(call.y, 0, y * (1 + ++calls * 0x1p-23));
}

std::vector<BatchNormFault> MemoryFaults() {
  return {
      {.name = "WritesToInput",
       .bug = "the first value of x is changed",
       .check = "Untouched",
       .says = "x has changed",
       .shows = HasOutputs,
       .normalized =
           [](const BatchNormKernels::NormalizeCall& call, ConstBuffer) {
             SetNumber({const_cast<void*>(call.x.data), 1, call.x.type}, 0, 0);
           }},
      {.name = "WritesBesideBias",
       .bug = "dbias has one element too many",
       .check = "Untouched",
       .says = "bytes beside dbias have changed",
       .shows =
           [](const BatchNormProblem& problem, const BatchNormVariant& v) {
             return problem.affine && HasOutputs(problem, v);
           },
       .reduced =
           [](int, Buffer, Buffer dbias) {
             if (dbias.count > 0) SetNumber(dbias, dbias.count, 0);
           }},
  };
}

std::vector<BatchNormFault> OrderFaults() {
  return {
      {.name = "IsReadyTwice",
       .bug = "gradients_ready is called twice",
       .check = "Ready",
       .says = "gradients_ready was called 2 times",
       .shows = HasOutputs,
       .backwards = ReadyTwice},
      {.name = "IsReadyTooEarly",
       .bug = "gradients_ready is called before there are gradients",
       .check = "Ready",
       .says = "changed after gradients_ready",
       .shows =
           [](const BatchNormProblem& problem, const BatchNormVariant& v) {
             return problem.affine && HasOutputs(problem, v);
           },
       .backwards = ReadyBefore},
      {.name = "EmptyRankSkips",
       .bug = "a rank without samples skips the call, and joins the next",
       .check = "Status",
       .says = "left the group",
       .shows =
           [](const BatchNormProblem& problem, const BatchNormVariant&) {
             return problem.batches == Batches::kEmptyRank &&
                    problem.world_size > 1;
           },
       .breaks_group = true,
       .forwards = ParticipateUnlessEmpty,
       .backwards = ReduceUnlessEmpty},
  };
}

std::vector<BatchNormFault> RefusalFaults() {
  return {
      {.name = "AcceptsOneValue",
       .bug = "torch: one value per channel is trained on",
       .check = "Status",
       .says = "one value per channel is accepted",
       .shows =
           [](const BatchNormProblem& problem, const BatchNormVariant& v) {
             return HasOneValue(problem) && v.semantics.name == "torch";
           },
       .told =
           [](BatchNormOptions& options) {
             options.semantics.refuses_one_value = false;
             options.semantics.unbiased_running_variance = false;
           }},
      {.name = "RefusesOneValue",
       .bug = "paddle: one value per channel is refused",
       .check = "Status",
       .says = "failed: batch norm: one value per channel",
       .shows =
           [](const BatchNormProblem& problem, const BatchNormVariant& v) {
             return HasOneValue(problem) && v.semantics.name == "paddle";
           },
       .told =
           [](BatchNormOptions& options) {
             options.semantics.refuses_one_value = true;
           }},
      {.name = "TellsEmptyRanksOtherwise",
       .bug = "only the rank that has the one value is told so in full",
       .check = "Status",
       .says = "; on rank 0 as: batch norm: one value per channel",
       .shows =
           [](const BatchNormProblem& problem, const BatchNormVariant& v) {
             return HasOneValue(problem) && v.semantics.name == "torch";
           },
       .problems = [] { return OneValueProblems(/*world_size=*/2); },
       .forwards = RefuseByBatch},
  };
}

std::vector<BatchNormFault> RunFaults() {
  return {
      {.name = "DependsOnTheRun",
       .bug = "the first y has other last bits in every run",
       .check = "SameBits",
       .says = "y has other bits in another run",
       .shows =
           [](const BatchNormProblem& problem, const BatchNormVariant& v) {
             return HasOutputs(problem, v) && problem.hw > 1 &&
                    problem.type == DataType::kFloat32 &&
                    problem.fused == Fused::kNothing;
           },
       .normalized = DriftWithEveryCall},
  };
}

}  // namespace

std::vector<BatchNormFault> CallFaults() {
  std::vector<BatchNormFault> all = MemoryFaults();
  for (const auto& some : {OrderFaults(), RefusalFaults(), RunFaults()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace lockstep
