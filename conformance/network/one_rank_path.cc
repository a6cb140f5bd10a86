// Runs one rank, and its shadows along its way.
#include "conformance/network/one_rank_path.h"

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/network/network_fixtures.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/trace.h"
#include "models/compute_threads.h"
#include "models/model.h"
#include "models/resnet18.h"

namespace lockstep {
namespace {

// On a group of one rank.
absl::Status Measure(Communicator& group, const NetworkMutation& mutation,
                     OneRankPath& path) {
  SetComputeThreads(1);
  const std::unique_ptr<Model> resnet =
      CreateResNet18(/*seed=*/0, kNetworkSide);
  std::unique_ptr<Model> mutant;
  if (mutation.model) mutant = mutation.model(*resnet, path.run, /*rank=*/0);
  Model& model = mutant ? *mutant : *resnet;
  model.ConvertSyncBatchNorm(group);
  for (int step = 0; step < path.run.steps; ++step) {
    const std::vector<float>& at = path.trace.first.parameters[step];
    const std::vector<float>& running = path.trace.ranks[0][step].running;
    const Samples& samples = path.trace.first.samples[step];
    path.steps.push_back(ReferenceStep(at, running, samples));
    LOCKSTEP_ASSIGN_OR_RETURN(
        path.rounding.emplace_back(),
        MeasureRounding(model, at, running, samples, path.steps.back()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OneRankPath> TakeOneRankPath(int steps,
                                            const NetworkMutation& mutation) {
  OneRankPath path{.run = {.deal = {kNetworkBatchSize}, .steps = steps},
                   .trace = {},
                   .steps = {},
                   .rounding = {}};
  LOCKSTEP_ASSIGN_OR_RETURN(path.trace, RunNetwork(path.run, mutation));
  for (const absl::Status& status : RunRanks(
           Backend::kThreads, 1,
           [&](Communicator& group) { return Measure(group, mutation, path); },
           {.group = {}, .deadline = absl::Seconds(200)})) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  return path;
}

}  // namespace lockstep
