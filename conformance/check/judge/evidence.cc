#include "conformance/check/judge/evidence.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/judge.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {
namespace {

// Returns a start of one rank, for one step on the samples `indices` of the
// training set.
ExtraStart StartOnShare(const CheckCase& check,
                        const std::vector<int64_t>& indices) {
  ExtraStart start{.plan = {.c = check.one_rank.c},
                   .files = WithSamples(check.files, "train", indices)};
  Case& c = start.plan.c;
  c.name = absl::StrCat(check.name, "_share");
  c.batch_sizes = {static_cast<int64_t>(indices.size())};
  c.accumulate = 1;
  c.epochs = 1;
  c.shuffle = false;
  c.evaluate = false;
  c.write_gradients = {1};
  c.write_state = {1};
  return start;
}

Tensors Moving(const CheckCase& check, Tensors tensors) {
  std::erase_if(tensors, [&check](const auto& entry) {
    return IsFrozenOrUnused(check, entry.first);
  });
  return tensors;
}

absl::StatusOr<std::vector<ShareResult>> MakeShares(const Evidence& evidence) {
  const CheckCase& check = evidence.check;
  std::vector<ShareResult> shares(evidence.world_size());
  for (int r = 0; r < evidence.world_size(); ++r) {
    const std::vector<StepOutput>& steps = evidence.rank(r).steps;
    if (steps.empty() || steps[0].indices.empty()) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const TrainerRun run,
        evidence.run_extra(StartOnShare(check, steps[0].indices)));
    if (run.ranks.size() != 1 || !run.ranks[0].status.ok() ||
        run.ranks[0].output.steps.size() != 1) {
      return absl::FailedPreconditionError(absl::StrCat(
          "one rank on the share of rank ", r, " did not give one step"));
    }
    const RankOutput& output = run.ranks[0].output;
    shares[r] = {.count = static_cast<double>(steps[0].indices.size()),
                 .gradients = Moving(check, TensorsOf(output, "gradient", 1)),
                 .buffers = TensorsOf(output, "buffer", 1),
                 .loss = output.steps[0].loss.value_or(0)};
  }
  return shares;
}

}  // namespace

const absl::StatusOr<std::vector<ShareResult>>& Evidence::Shares() {
  if (!shares.has_value()) shares = MakeShares(*this);
  return *shares;
}

std::vector<double> Evidence::Counts(int64_t step) const {
  std::vector<double> counts;
  for (int r = 0; r < world_size(); ++r) {
    const std::vector<StepOutput>& steps = rank(r).steps;
    const auto i = static_cast<size_t>(step - 1);
    counts.push_back(
        i < steps.size() ? static_cast<double>(steps[i].indices.size()) : 0);
  }
  return counts;
}

Tensors MeanOfShares(const std::vector<ShareResult>& shares, bool weighted) {
  std::vector<double> weights;
  std::vector<Tensors> terms;
  for (const ShareResult& share : shares) {
    if (share.count == 0) continue;
    weights.push_back(weighted ? share.count : 1);
    terms.push_back(share.gradients);
  }
  return WeightedMean(weights, terms);
}

Reference OneRanksReference(const Evidence& evidence, const std::string& kind,
                            int64_t step) {
  const CheckCase& check = evidence.check;
  Reference reference;
  reference.want = Moving(check, TensorsOf(evidence.one_rank(), kind, step));
  std::vector<Tensors> reordered;
  for (const TrainerRun& run : evidence.runs.reordered) {
    reordered.push_back(TensorsOf(run.ranks[0].output, kind, step));
  }
  reference.allowed =
      AllowedErrorsOf(check, kind == "gradient" ? Tensors() : StartOf(check),
                      reference.want, reordered);
  return reference;
}

absl::StatusOr<Reference> GradientReference(Evidence& evidence, int64_t step) {
  Reference reference = OneRanksReference(evidence, "gradient", step);
  if (evidence.c.batch_norm == "local" && step == 1) {
    LOCKSTEP_RETURN_IF_ERROR(evidence.Shares().status());
    reference.want = MeanOfShares(*evidence.Shares(), true);
  }
  return reference;
}

bool IsFrozenOrUnused(const CheckCase& check, const std::string& name) {
  const Case& c = check.all_ranks.c;
  return Includes(c.frozen, name) || Includes(c.unused, name);
}

std::string NamesUnlessAll(const CheckCase& check,
                           const std::vector<std::string>& names,
                           size_t count) {
  if (names.size() >= count) return "";
  std::vector<std::string> places;
  for (const std::string& name : names) {
    places.push_back(WithLayer(check, name));
  }
  return absl::StrJoin(places, ", ");
}

std::string WithRanks(int world_size) {
  return absl::StrCat("With ", world_size,
                      world_size == 1 ? " rank" : " ranks");
}

Judgement ReferenceFailed(const absl::Status& status) {
  return Failed(absl::StrCat("There is no reference to judge by: ",
                             std::string(status.message())),
                {});
}

}  // namespace lockstep::conformance
