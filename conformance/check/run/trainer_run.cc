#include "conformance/check/run/trainer_run.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep {
namespace {

void JoinRank(TrainerRun::Rank& first, TrainerRun::Rank second) {
  if (!first.status.ok()) return;
  if (!second.status.ok()) {
    first.status = absl::Status(
        second.status.code(),
        absl::StrCat("after the resume: ", second.status.message()));
    first.output = RankOutput();
    return;
  }
  if (first.output.unsupported.has_value()) return;
  if (second.output.unsupported.has_value()) {
    first.output = std::move(second.output);
    return;
  }
  first.output.steps.insert(
      first.output.steps.end(),
      std::make_move_iterator(second.output.steps.begin()),
      std::make_move_iterator(second.output.steps.end()));
  first.output.tensors.merge(second.output.tensors);
  first.output.evaluation = std::move(second.output.evaluation);
  // A rank that changes its mind in between is seen by the later one.
  first.output.world_size = second.output.world_size;
}

}  // namespace

TrainerRun JoinRuns(TrainerRun first, TrainerRun second) {
  first.end = second.end;
  if (second.end != TrainerRun::End::kExited) {
    first.how = absl::StrCat("after the resume: ", second.how);
  }
  first.last_lines = std::move(second.last_lines);
  first.wall += second.wall;
  for (size_t r = 0; r < first.ranks.size() && r < second.ranks.size(); ++r) {
    JoinRank(first.ranks[r], std::move(second.ranks[r]));
  }
  return first;
}

}  // namespace lockstep
