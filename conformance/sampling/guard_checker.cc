// What a sampler must refuse, and when.
#include "conformance/sampling/guard_checker.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/sampling_subject.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

// That the case is refused on the rank, in words that hold `name`. what: the
// mistake in it.
absl::Status CheckRefusal(const SubjectFactory& make, const SamplingCase& c,
                          int rank, const std::string& name,
                          const std::string& what) {
  const auto subject = make(c, rank);
  const std::string where = absl::StrCat("rank ", rank, ": ", what);
  if (subject.ok()) return Breaks("Guards", c, where + " is not refused");
  const std::string message(subject.status().message());
  if (subject.status().code() != absl::StatusCode::kInvalidArgument ||
      !absl::StrContains(message, name)) {
    return Breaks("Guards", c,
                  absl::StrCat(where, " is refused without saying ", name, ": ",
                               subject.status().ToString()));
  }
  return absl::OkStatus();
}

// Of a number of the case.
absl::Status CheckNumber(const SubjectFactory& make, const SamplingCase& bad,
                         const std::string& name, int value) {
  return CheckRefusal(make, bad, 0, absl::StrCat(name, " is ", value),
                      absl::StrCat("a ", name, " of ", value));
}

RepeatedDraw ModeOf(const SamplingCase& c) {
  const RepeatedDraw mode = c.repeated_draw.value_or(
      c.semantics == Semantics::kPaddle ? RepeatedDraw::kAdvance
                                        : RepeatedDraw::kRefuse);
  // An order that no epoch changes may come again.
  return mode == RepeatedDraw::kRefuse && c.shuffle == Shuffle::kNone
             ? RepeatedDraw::kAllow
             : mode;
}

// How the draw after one of epoch 0 is not what the mode wants.
std::optional<std::string> WrongSecondDraw(
    const std::vector<std::vector<Batches>>& epochs, RepeatedDraw mode,
    size_t rank, const absl::StatusOr<Batches>& got) {
  if (mode != RepeatedDraw::kRefuse) {
    if (!got.ok()) return absl::StrCat("is refused: ", got.status().ToString());
    const size_t epoch = mode == RepeatedDraw::kAdvance ? 1 : 0;
    const auto difference =
        FirstDifference(*got, epochs[epoch][rank], static_cast<int>(rank));
    if (!difference.has_value()) return std::nullopt;
    return absl::StrCat("is not epoch ", epoch, ": ", *difference);
  }
  if (got.ok()) return "is not refused";
  const std::string message(got.status().message());
  if (got.status().code() == absl::StatusCode::kFailedPrecondition &&
      absl::StrContains(message, "SetEpoch")) {
    return std::nullopt;
  }
  return absl::StrCat("is refused without saying SetEpoch: ",
                      got.status().ToString());
}

// Under a mode that is asked for, or the default; and that the epoch can be set
// after it.
absl::Status CheckMode(const SubjectFactory& make, const SamplingCase& c,
                       const std::vector<std::vector<Batches>>& epochs) {
  const std::string as =
      c.repeated_draw.has_value() ? "as asked for" : "by default";
  for (size_t rank = 0; rank < epochs[0].size(); ++rank) {
    const int number = static_cast<int>(rank);
    LOCKSTEP_ASSIGN_OR_RETURN(const auto subject, make(c, number));
    LOCKSTEP_RETURN_IF_ERROR(DrawEpoch(*subject).status());
    const auto wrong =
        WrongSecondDraw(epochs, ModeOf(c), rank, DrawEpoch(*subject));
    if (wrong.has_value()) {
      return Breaks("RepeatedDraw", c,
                    absl::StrCat("the second draw, ", as, ", ", *wrong));
    }
    subject->SetEpoch(2);
    LOCKSTEP_ASSIGN_OR_RETURN(const Batches next, DrawEpoch(*subject));
    const auto difference = FirstDifference(next, epochs[2][rank], number);
    if (!difference.has_value()) continue;
    return Breaks("RepeatedDraw", c,
                  absl::StrCat("after two draws, ", as,
                               ", epoch 2 is another: ", *difference));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGuards(const SubjectFactory& make, const SamplingCase& c) {
  if (StepsOf(c) == 0) {
    for (int rank = 0; rank < c.world_size; ++rank) {
      LOCKSTEP_RETURN_IF_ERROR(CheckRefusal(make, c, rank, "drop_last",
                                            "an epoch that drop_last empties"));
    }
    return absl::OkStatus();
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRefusal(make, c, -1, "rank is -1", "a rank of -1"));
  LOCKSTEP_RETURN_IF_ERROR(CheckRefusal(make, c, c.world_size,
                                        absl::StrCat("rank is ", c.world_size),
                                        "a rank as large as the world"));
  for (const int wrong : {0, -1}) {
    SamplingCase bad = c;
    bad.dataset_size = wrong;
    LOCKSTEP_RETURN_IF_ERROR(CheckNumber(make, bad, "dataset_size", wrong));
    bad = c;
    bad.world_size = wrong;
    LOCKSTEP_RETURN_IF_ERROR(CheckNumber(make, bad, "world_size", wrong));
    bad = c;
    bad.batch_size = wrong;
    LOCKSTEP_RETURN_IF_ERROR(CheckNumber(make, bad, "batch_size", wrong));
  }
  return absl::OkStatus();
}

absl::Status CheckRepeatedDraw(
    const SubjectFactory& make, const SamplingCase& c,
    const std::vector<std::vector<Batches>>& epochs) {
  SamplingCase asked = c;
  LOCKSTEP_RETURN_IF_ERROR(CheckMode(make, asked, epochs));
  for (const RepeatedDraw mode :
       {RepeatedDraw::kRefuse, RepeatedDraw::kAdvance, RepeatedDraw::kAllow}) {
    asked.repeated_draw = mode;
    LOCKSTEP_RETURN_IF_ERROR(CheckMode(make, asked, epochs));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
