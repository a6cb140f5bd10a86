// Judges how runs ended and whether their outputs are complete.
#include "conformance/check/judge/run_claim.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/check/judge/judge.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {
namespace {

using MaybeProblem = std::optional<Judgement>;

Judgement ProblemOf(const std::string& what, Cause cause, int rank = -1,
                    int64_t step = 0) {
  return Failed(what, {.cause = cause, .facts = {.rank = rank, .step = step}});
}

// One run of the case.
struct JudgedRun {
  const CheckCase& check;
  const Case& c;
  const TrainerRun& run;
  int64_t steps;  // The number of steps in the case.
};

// Finds a rank that wrote its output before the case's last step, and not
// because of stop_after, while other ranks wrote nothing.
MaybeProblem FindRankThatStoppedEarly(const JudgedRun& judged,
                                      const std::string& how) {
  std::vector<int> silent;
  int early = -1;
  for (size_t r = 0; r < judged.run.ranks.size(); ++r) {
    const TrainerRun::Rank& rank = judged.run.ranks[r];
    const int64_t done = std::ssize(rank.output.steps);
    if (!rank.status.ok()) {
      silent.push_back(static_cast<int>(r));
    } else if (done < judged.steps && done != judged.c.stop_after) {
      early = static_cast<int>(r);
    }
  }
  if (early < 0 || silent.empty()) return std::nullopt;
  const size_t done = judged.run.ranks[early].output.steps.size();
  return ProblemOf(absl::StrCat(how, "; rank ", early, " was done after ", done,
                                " of ", judged.steps, " steps, while rank ",
                                absl::StrJoin(silent, ", "), " wrote nothing"),
                   Cause::kRankSkipsLastBatch, early);
}

MaybeProblem EndProblem(const JudgedRun& judged) {
  if (judged.run.end == TrainerRun::End::kExited) return std::nullopt;
  const std::string how = judged.run.how.empty() ? "it failed" : judged.run.how;
  if (MaybeProblem problem = FindRankThatStoppedEarly(judged, how))
    return problem;
  const bool hangs = judged.run.end == TrainerRun::End::kTimedOut;
  return ProblemOf(how, hangs ? Cause::kHangs : Cause::kCrashes);
}

MaybeProblem ReadProblem(const JudgedRun& judged) {
  for (size_t r = 0; r < judged.run.ranks.size(); ++r) {
    const TrainerRun::Rank& rank = judged.run.ranks[r];
    const int number = static_cast<int>(r);
    if (absl::IsNotFound(rank.status)) {
      return ProblemOf(absl::StrCat("rank ", r, " wrote nothing"),
                       Cause::kWritesNothing, number);
    }
    if (!rank.status.ok()) {
      return ProblemOf(std::string(rank.status.message()),
                       Cause::kWritesGarbage, number);
    }
    if (rank.output.unsupported.has_value()) continue;
    if (rank.output.world_size != judged.run.world_size) {
      return ProblemOf(absl::StrCat("rank ", r, " says that there are ",
                                    rank.output.world_size, " ranks, not ",
                                    judged.run.world_size),
                       Cause::kWrongWorldSize, number);
    }
  }
  return std::nullopt;
}

bool InRange(const std::vector<int64_t>& indices, int64_t size) {
  return std::ranges::all_of(
      indices, [size](int64_t index) { return index >= 0 && index < size; });
}

MaybeProblem StepsProblem(const JudgedRun& judged, int r,
                          const RankOutput& output) {
  const int64_t size = SampleCount(judged.check.files, "train");
  if (output.steps.empty() && judged.steps > 0) {
    return ProblemOf(absl::StrCat("rank ", r, " wrote no step"),
                     Cause::kIncomplete, r);
  }
  int64_t number = 0;
  for (const StepOutput& step : output.steps) {
    const std::string where = absl::StrCat("rank ", r, ", step ", ++number);
    if (step.epoch < 0 || step.epoch >= judged.c.epochs ||
        !InRange(step.indices, size)) {
      return ProblemOf(
          absl::StrCat(where,
                       " has an epoch or an index that is not the data's"),
          Cause::kWritesGarbage, r);
    }
    if (!step.indices.empty() && !step.loss.has_value()) {
      return ProblemOf(absl::StrCat(where, " has no loss"), Cause::kIncomplete,
                       r);
    }
  }
  return std::nullopt;
}

MaybeProblem EvaluationProblem(const JudgedRun& judged, int r,
                               const RankOutput& output) {
  if (!judged.c.evaluate) return std::nullopt;
  if (!output.evaluation.has_value()) {
    // Other ranks may have evaluated the samples.
    for (const TrainerRun::Rank& rank : judged.run.ranks) {
      if (rank.output.evaluation.has_value()) return std::nullopt;
    }
    return ProblemOf(absl::StrCat("rank ", r, " wrote no evaluation"),
                     Cause::kIncomplete, r);
  }
  if (!InRange(output.evaluation->indices,
               SampleCount(judged.check.files, "test"))) {
    return ProblemOf(
        absl::StrCat("rank ", r,
                     " evaluated an index that is not the test set's"),
        Cause::kWritesGarbage, r);
  }
  if (!std::isfinite(output.evaluation->loss) ||
      !std::isfinite(output.evaluation->accuracy)) {
    return ProblemOf(absl::StrCat("rank ", r, "'s evaluation has loss ",
                                  output.evaluation->loss, " and accuracy ",
                                  output.evaluation->accuracy),
                     Cause::kNotFinite, r,
                     static_cast<int64_t>(output.steps.size()));
  }
  return std::nullopt;
}

// Returns whether a parameter must have a gradient. It must if one rank's
// output has it as a parameter or, if one rank wrote no state, as a gradient.
bool NeedsGradient(const JudgedRun& judged, const RankOutput& one,
                   const std::string& name) {
  if (IsFrozenOrUnused(judged.check, name)) return false;
  for (const auto& [tensor, value] : one.tensors) {
    if (!tensor.ends_with("/" + name)) continue;
    if (tensor.starts_with("parameter.") || tensor.starts_with("gradient.")) {
      return true;
    }
  }
  return false;
}

MaybeProblem TensorProblem(const JudgedRun& judged, int r,
                           const RankOutput& output, const std::string& key,
                           const std::string& name, int64_t step) {
  const NamedTensor& tensor = output.tensors.at(key);
  const NamedTensor& start = judged.check.files.weights.tensors.at(name);
  if (tensor.shape != start.shape) {
    return ProblemOf(
        absl::StrCat("rank ", r, "'s ", key, " has shape [",
                     absl::StrJoin(tensor.shape, ", "), "], and not [",
                     absl::StrJoin(start.shape, ", "), "]"),
        Cause::kWritesGarbage, r);
  }
  for (const double value : ToValues(tensor)) {
    if (std::isfinite(value)) continue;
    return ProblemOf(
        absl::StrCat("rank ", r, "'s ", key, ", of ",
                     WithLayer(judged.check, name), ", has ", value),
        Cause::kNotFinite, r, step);
  }
  return std::nullopt;
}

// Checks everything that a rank must have written in one step, in the order of
// the pass.
MaybeProblem TensorsProblem(const JudgedRun& judged, int r,
                            const RankOutput& output, const RankOutput& one,
                            int64_t step) {
  for (const std::string kind : {"gradient", "parameter"}) {
    const bool gradients = kind == "gradient";
    if (!Includes(gradients ? judged.c.write_gradients : judged.c.write_state,
                  step)) {
      continue;
    }
    for (const std::string& name : NamesInOrder(judged.check)) {
      std::string key = absl::StrCat(kind, ".", step, "/", name);
      if (!gradients && !output.tensors.contains(key)) {
        key = absl::StrCat("buffer.", step, "/", name);
      }
      if (output.tensors.contains(key)) {
        MaybeProblem problem =
            TensorProblem(judged, r, output, key, name, step);
        if (problem.has_value()) return problem;
      } else if (!gradients || NeedsGradient(judged, one, name)) {
        return ProblemOf(
            absl::StrCat("rank ", r, " wrote no ",
                         gradients ? "gradient" : "state", " of ",
                         WithLayer(judged.check, name), " for step ", step),
            Cause::kIncomplete, r);
      }
    }
  }
  return std::nullopt;
}

MaybeProblem OutputProblem(const JudgedRun& judged, int r,
                           const RankOutput& one) {
  const RankOutput& output = judged.run.ranks[r].output;
  if (MaybeProblem problem = StepsProblem(judged, r, output)) return problem;
  int64_t number = 0;
  for (const StepOutput& step : output.steps) {
    ++number;
    if (!std::isfinite(step.loss.value_or(0))) {
      return ProblemOf(absl::StrCat("rank ", r, "'s loss of step ", number,
                                    " is ", *step.loss),
                       Cause::kNotFinite, r, number);
    }
    MaybeProblem problem = TensorsProblem(judged, r, output, one, number);
    if (problem.has_value()) return problem;
  }
  return EvaluationProblem(judged, r, output);
}

MaybeProblem RunProblem(const JudgedRun& judged, const RankOutput& one) {
  if (MaybeProblem problem = EndProblem(judged)) return problem;
  if (MaybeProblem problem = ReadProblem(judged)) return problem;
  for (int r = 0; r < judged.run.world_size; ++r) {
    if (MaybeProblem problem = OutputProblem(judged, r, one)) return problem;
  }
  return std::nullopt;
}

std::optional<std::string> Unsupported(const TrainerRun& run) {
  for (const TrainerRun::Rank& rank : run.ranks) {
    if (rank.status.ok() && rank.output.unsupported.has_value()) {
      return rank.output.unsupported;
    }
  }
  return std::nullopt;
}

}  // namespace

Judgement JudgeRun(Evidence& evidence) {
  const CheckCase& check = evidence.check;
  const CaseRuns& runs = evidence.runs;
  std::vector<const TrainerRun*> all = {&runs.one_rank, &runs.all_ranks};
  for (const TrainerRun& run : runs.reordered) all.push_back(&run);
  for (const TrainerRun* run : all) {
    const std::optional<std::string> why = Unsupported(*run);
    if (!why.has_value()) continue;
    return Skipped(absl::StrCat("The trainer does not run this case: ", *why));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const Case& c = i == 1 ? check.all_ranks.c : check.one_rank.c;
    const int64_t batch = c.global_batch();
    const int64_t size = SampleCount(check.files, "train");
    const JudgedRun judged{check, c, *all[i],
                           (size + batch - 1) / batch * c.epochs};
    const RankOutput none;
    const auto& ranks = runs.one_rank.ranks;
    MaybeProblem problem =
        RunProblem(judged, ranks.empty() ? none : ranks[0].output);
    if (!problem.has_value()) continue;
    problem->run = all[i];
    problem->what = absl::StrCat(
        WithRanks(all[i]->world_size),
        i > 1 ? " and samples in another order, " : ", ", problem->what);
    return *problem;
  }
  return Passed();
}

}  // namespace lockstep::conformance
