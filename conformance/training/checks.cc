#include "conformance/training/checks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "conformance/training/causes.h"
#include "conformance/training/sample_checks.h"
#include "conformance/training/trace.h"
#include "models/model.h"
#include "models/reference/bounded.h"

namespace lockstep::conformance {
namespace {

// The largest distance, relative to the gradient's norm, between a gradient and
// k times the reference at which k is named as the explanation.
constexpr double kFitResidual = 0.05;

absl::Status AtStep(const Expectation& want, size_t s,
                    const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(StepName(want, s), ": ", std::string(status.message())));
}

// Returns the first element whose bits differ.
std::optional<int64_t> FirstDifference(std::span<const float> a,
                                       std::span<const float> b) {
  if (std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) return {};
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return static_cast<int64_t>(i);
    }
  }
  return {};
}

// Returns the likely cause if the gradient is k times the reference.
std::string LikelyCause(const Bounded& want, std::span<const float> got,
                        int world_size) {
  double dot = 0, square = 0, got_square = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    dot += got[i] * want.value[i];
    square += want.value[i] * want.value[i];
    got_square += static_cast<double>(got[i]) * got[i];
  }
  const double k = dot / square;
  const double residual = std::sqrt(std::max(got_square - k * dot, 0.0));
  if (!(residual <= kFitResidual * std::sqrt(got_square)) || k == 0) return "";
  const auto near = [k](double x) {
    return std::abs(k - x) <= kFitResidual * x;
  };
  std::string cause = absl::StrFormat("; the gradient is %.4g times it", k);
  if (near(1)) return "";
  if (near(world_size)) {
    absl::StrAppend(&cause, ", the world size: summed, not averaged?");
  } else if (near(1.0 / world_size)) {
    absl::StrAppend(&cause, ", 1 / world size: averaged twice, or not summed?");
  }
  return cause;
}

// Returns the first element out of its bound.
std::optional<int64_t> FirstOutOfBound(const Bounded& want,
                                       std::span<const float> got) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (!(std::abs(got[i] - want.value[i]) <= want.bound[i])) {
      return static_cast<int64_t>(i);
    }
  }
  return {};
}

// The parts of the step's gradients, in which causes are looked for.
class StepParts {
 public:
  StepParts(const Expectation& want, std::span<const RankTrace> ranks, size_t s)
      : specs_(want.specs),
        want_(want.reference(ranks[0].parameters[s], want.steps[s].samples)) {
    const auto all = static_cast<double>(want.steps[s].samples.size());
    for (const RankTrace& trace : ranks) {
      const Samples& own = trace.samples[s];
      Bounded part(want_.size());
      if (own.size() > 0) part = want.reference(ranks[0].parameters[s], own);
      const double weight = static_cast<double>(own.size()) / all;
      for (double& v : part.value) v *= weight;
      for (double& v : part.bound) v *= weight;
      parts_.push_back(std::move(part));
      samples_.push_back(own.size());
    }
    if (s > 0) before_ = ranks[0].gradients[s - 1];
  }

  StepGradients With(std::span<const std::vector<float>> by_rank) const {
    return {specs_, want_, by_rank, parts_, samples_, before_};
  }

 private:
  const std::span<const ParameterSpec> specs_;
  const Bounded want_;
  std::vector<Bounded> parts_;
  std::vector<int64_t> samples_;
  std::span<const float> before_;
};

// Appends a cause to an error; OK stays OK.
absl::Status Adding(const absl::Status& status, const std::string& cause) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(std::string(status.message()), cause));
}

// Returns the cause of wrong gradients, or "" if it is unknown.
std::string GradientCause(const Expectation& want,
                          std::span<const RankTrace> ranks, size_t s,
                          std::span<const std::vector<float>> by_rank,
                          const Bounded& reference) {
  if (s > 0 && by_rank[0] == ranks[0].gradients[s - 1]) {
    return "; it is the gradient of the step before: stale";
  }
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (!FirstOutOfBound(reference, by_rank[rank])) continue;
    return CauseOfGradient(StepParts(want, ranks, s).With(by_rank),
                           static_cast<int>(rank));
  }
  return "";
}

// Returns the cause of gradients whose bits differ.
std::string DisagreementCause(const Expectation& want,
                              std::span<const RankTrace> ranks, size_t s,
                              std::span<const std::vector<float>> by_rank) {
  if (!want.reference) return "";
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (!FirstDifference(by_rank[0], by_rank[rank])) continue;
    return CauseOfDisagreement(StepParts(want, ranks, s).With(by_rank),
                               static_cast<int>(rank));
  }
  return "";
}

// Returns a field of the ranks' traces at step s.
std::vector<std::vector<float>> ByRank(
    std::span<const RankTrace> ranks,
    std::vector<std::vector<float>> RankTrace::*field, size_t s) {
  std::vector<std::vector<float>> by_rank;
  for (const RankTrace& trace : ranks) by_rank.push_back((trace.*field)[s]);
  return by_rank;
}

}  // namespace

absl::Status CheckGradients(std::span<const ParameterSpec> specs,
                            const Bounded& want,
                            std::span<const std::vector<float>> got_by_rank) {
  const int world_size = static_cast<int>(got_by_rank.size());
  for (int rank = 0; rank < world_size; ++rank) {
    const std::vector<float>& got = got_by_rank[rank];
    if (static_cast<int64_t>(got.size()) != want.size()) {
      return absl::DataLossError(
          absl::StrCat("rank ", rank, " has ", got.size(),
                       " gradient elements, must have ", want.size()));
    }
    const std::optional<int64_t> i = FirstOutOfBound(want, got);
    if (!i) continue;
    return absl::DataLossError(
        absl::StrFormat("rank %d: gradient %s is %.9g, must be %.9g +- %.2g%s",
                        rank, ElementName(specs, *i), got[*i], want.value[*i],
                        want.bound[*i], LikelyCause(want, got, world_size)));
  }
  return absl::OkStatus();
}

absl::Status CheckBitsAgree(std::span<const ParameterSpec> specs,
                            absl::string_view what,
                            std::span<const std::vector<float>> by_rank) {
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].size() != by_rank[0].size()) {
      return absl::DataLossError(
          absl::StrCat("ranks 0 and ", rank, " have ", by_rank[0].size(),
                       " and ", by_rank[rank].size(), " elements of ", what));
    }
    const std::optional<int64_t> i = FirstDifference(by_rank[0], by_rank[rank]);
    if (!i) continue;
    return absl::DataLossError(absl::StrFormat(
        "ranks 0 and %d disagree on the %s: %s is %.9g and %.9g", rank,
        std::string(what), ElementName(specs, *i), by_rank[0][*i],
        by_rank[rank][*i]));
  }
  return absl::OkStatus();
}

absl::Status CheckSameStart(const Expectation& want,
                            std::span<const RankTrace> ranks) {
  LOCKSTEP_RETURN_IF_ERROR(CheckShapes(want, ranks));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::optional<int64_t> i =
        FirstDifference(want.start, ranks[rank].parameters[0]);
    if (!i) continue;
    const bool alike =
        std::all_of(ranks.begin(), ranks.end(), [&](const RankTrace& trace) {
          return !FirstDifference(trace.parameters[0], ranks[0].parameters[0]);
        });
    return absl::DataLossError(absl::StrFormat(
        "rank %d starts with %s = %.9g, rank 0's own is %.9g%s", rank,
        ElementName(want.specs, *i), ranks[rank].parameters[0][*i],
        want.start[*i],
        alike && ranks.size() > 1
            ? ", and all ranks start alike: broadcast from another rank?"
            : ": parameters not broadcast from rank 0?"));
  }
  return absl::OkStatus();
}

absl::Status CheckRanksAgree(const Expectation& want,
                             std::span<const RankTrace> ranks) {
  LOCKSTEP_RETURN_IF_ERROR(CheckShapes(want, ranks));
  for (size_t s = 0; s <= want.steps.size(); ++s) {
    const absl::Status status = CheckBitsAgree(
        want.specs, "parameters", ByRank(ranks, &RankTrace::parameters, s));
    if (s == want.steps.size()) return status;
    LOCKSTEP_RETURN_IF_ERROR(AtStep(want, s, status));
    const auto by_rank = ByRank(ranks, &RankTrace::gradients, s);
    const absl::Status agree = CheckBitsAgree(want.specs, "gradients", by_rank);
    if (agree.ok()) continue;
    return AtStep(want, s,
                  Adding(agree, DisagreementCause(want, ranks, s, by_rank)));
  }
  return absl::OkStatus();
}

absl::Status CheckStepGradients(const Expectation& want,
                                std::span<const RankTrace> ranks) {
  LOCKSTEP_RETURN_IF_ERROR(CheckShapes(want, ranks));
  for (size_t s = 0; s < want.steps.size(); ++s) {
    const Bounded reference =
        want.reference(ranks[0].parameters[s], want.steps[s].samples);
    const auto by_rank = ByRank(ranks, &RankTrace::gradients, s);
    for (const std::vector<float>& got : by_rank) {
      if (want.measure) want.measure(LargestError(reference, got));
    }
    const absl::Status status = CheckGradients(want.specs, reference, by_rank);
    if (status.ok()) continue;
    return AtStep(
        want, s,
        Adding(status, GradientCause(want, ranks, s, by_rank, reference)));
  }
  return absl::OkStatus();
}

absl::Status CheckUpdates(const Expectation& want,
                          std::span<const RankTrace> ranks) {
  LOCKSTEP_RETURN_IF_ERROR(CheckShapes(want, ranks));
  const double rate = want.learning_rate;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankTrace& trace = ranks[rank];
    for (size_t s = 0; s < want.steps.size(); ++s) {
      for (size_t i = 0; i < want.start.size(); ++i) {
        const double step = rate * trace.gradients[s][i];
        const double exact = trace.parameters[s][i] - step;
        const double got = trace.parameters[s + 1][i];
        const double allowed = kUnitRoundoff *
                                   (std::abs(step) + std::abs(exact)) *
                                   (1 + kOwnError) +
                               2 * kSmallest;
        if (std::abs(got - exact) <= allowed) continue;
        return absl::DataLossError(absl::StrFormat(
            "%s: rank %d: %s becomes %.9g, must be %.9g +- %.2g, its value - "
            "learning rate * gradient%s",
            StepName(want, s), rank,
            ElementName(want.specs, static_cast<int64_t>(i)), got, exact,
            allowed,
            CauseOfUpdate(
                {want.specs, trace.parameters[s], trace.parameters[s + 1],
                 trace.gradients[s], rate, ranks.size()},
                i)));
      }
    }
  }
  return absl::OkStatus();
}

const std::vector<Check>& AllChecks() {
  static const auto& checks = *new std::vector<Check>{
      {"SameStart", CheckSameStart},       {"Samples", CheckSamples},
      {"EpochsDiffer", CheckEpochsDiffer}, {"RanksAgree", CheckRanksAgree},
      {"Updates", CheckUpdates},           {"Gradients", CheckStepGradients},
  };
  return checks;
}

absl::Status CheckSameTraining(const Expectation& want,
                               std::span<const RankTrace> ranks) {
  for (const Check& check : AllChecks()) {
    const absl::Status status = check.run(want, ranks);
    if (status.ok()) continue;
    return absl::Status(
        status.code(),
        absl::StrCat(check.name, ": ", std::string(status.message())));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::conformance
