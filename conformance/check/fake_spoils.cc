// Ends runs early, and takes away or damages what they wrote.
#include "conformance/check/fake_spoils.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "absl/status/status.h"
#include "conformance/check/fake_fault.h"
#include "conformance/check/trainer_run.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep {

namespace {

void SpoilOutput(FakeFault fault, bool parallel, RankOutput& output) {
  if (fault == FakeFault::kThinksItIsAlone) output.world_size = 1;
  if (fault == FakeFault::kLeavesOutEvaluation ||
      (fault == FakeFault::kFirstRankEvaluatesAll && output.rank > 0)) {
    output.evaluation.reset();
  }
  if (parallel && fault == FakeFault::kWritesOtherShape) {
    for (auto& [key, tensor] : output.tensors) tensor.shape.push_back(1);
  }
  if (fault == FakeFault::kLeavesOutTensor) {
    std::erase_if(output.tensors, [](const auto& entry) {
      return entry.first.ends_with("/b2");
    });
  }
  if (parallel && fault == FakeFault::kWritesForeignIndex) {
    output.steps[0].indices[0] = -1;
  }
}

}  // namespace

void SpoilRun(FakeFault fault, TrainerRun& run) {
  const bool parallel = run.world_size > 1;
  const auto last = static_cast<size_t>(run.world_size - 1);
  const auto silence = [&run](size_t ranks, const absl::Status& status) {
    std::fill_n(run.ranks.begin(), ranks, TrainerRun::Rank{status, {}});
  };
  const bool hangs = fault == FakeFault::kLastRankSkipsAndOthersHang;
  const bool crashes = fault == FakeFault::kLastRankSkipsAndOthersCrash;
  const bool skips = fault == FakeFault::kLastRankSkipsLastBatch;
  if (parallel && (hangs || crashes || skips)) {
    run.ranks[last].output.steps.pop_back();
    if (!skips) silence(last, absl::NotFoundError("no file"));
  }
  if ((parallel && hangs) || fault == FakeFault::kHangs) {
    run.end = TrainerRun::End::kTimedOut;
    run.how = "it did not end within 60 s";
  }
  if ((parallel && crashes) || fault == FakeFault::kCrashes) {
    run.end = TrainerRun::End::kFailed;
    run.how = "rank 0 exited with status 1";
    run.last_lines = {"[0] RuntimeError: connection closed by peer"};
  }
  if (fault == FakeFault::kHangs || fault == FakeFault::kCrashes ||
      fault == FakeFault::kWritesNothing) {
    silence(last + 1, absl::NotFoundError("no file"));
  }
  if (fault == FakeFault::kWritesGarbage) {
    silence(1, absl::DataLossError("rank0.json: not JSON at byte 0"));
  }
  for (TrainerRun::Rank& rank : run.ranks) {
    SpoilOutput(fault, parallel, rank.output);
  }
}

}  // namespace lockstep
