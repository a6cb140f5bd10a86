#include "conformance/protocol/protocol_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "models/io/fuzz_inputs.h"

namespace lockstep::conformance {
namespace {

std::string CheckError(const absl::Status& error) {
  if (!absl::IsDataLoss(error)) {
    return absl::StrCat("an error of another kind: ", error.ToString());
  }
  return CheckMessage(error, "file");
}

bool AreNatural(const std::vector<int64_t>& numbers) {
  return std::ranges::all_of(numbers, [](int64_t n) { return n >= 0; });
}

// Returns whether the steps ascend from at least 1.
bool AreSteps(const std::vector<int64_t>& steps) {
  return std::ranges::adjacent_find(steps, std::greater_equal()) ==
             steps.end() &&
         (steps.empty() || steps[0] > 0);
}

bool IsPossible(const Case& c) {
  return AreNatural(c.batch_sizes) && c.global_batch() > 0 &&
         c.accumulate > 0 && c.epochs >= 0 && c.seed >= 0 &&
         c.stop_after >= 0 && !c.name.empty() && !c.model.empty() &&
         std::isfinite(c.learning_rate) && std::isfinite(c.momentum) &&
         std::isfinite(c.weight_decay) && AreSteps(c.write_gradients) &&
         AreSteps(c.write_state);
}

bool IsPossible(const RankOutput& output) {
  for (const StepOutput& step : output.steps) {
    if (step.epoch < 0 || !AreNatural(step.indices)) return false;
  }
  if (output.evaluation.has_value() &&
      (output.evaluation->count < 0 ||
       !AreNatural(output.evaluation->indices))) {
    return false;
  }
  return output.rank >= 0 && output.rank < output.world_size &&
         output.tensors.empty() &&
         (!output.unsupported.has_value() ||
          (output.steps.empty() && !output.evaluation.has_value()));
}

bool AreTheSame(const Case& a, const Case& b) { return a == b; }

// Compares the texts, in which NaN equals NaN.
bool AreTheSame(const RankOutput& a, const RankOutput& b) {
  return FormatRankOutput(a) == FormatRankOutput(b);
}

template <typename T>
std::string CheckText(const std::string& text, bool& accepted,
                      absl::StatusOr<T> (*parse)(const std::string& text,
                                                 const std::string& path),
                      std::string (*format)(const T&)) {
  const absl::StatusOr<T> read = parse(text, "file");
  accepted = read.ok();
  if (!accepted) return CheckError(read.status());
  if (!IsPossible(*read)) return "a value that cannot be";
  const absl::StatusOr<T> again = parse(format(*read), "file");
  if (!again.ok()) return "a written value that is refused";
  return AreTheSame(*again, *read) ? "" : "another value after writing";
}

}  // namespace

std::string CheckCaseText(const std::string& text, bool& accepted) {
  return CheckText(text, accepted, ParseCase, FormatCase);
}

std::string CheckRankOutputText(const std::string& text, bool& accepted) {
  return CheckText(text, accepted, ParseRankOutput, FormatRankOutput);
}

Case ExampleCase() {
  return {.name = "resume, \"quoted\" and é",
          .model = "one's own",
          .batch_norm = "local",
          .unused = {"u"},
          .frozen = {"W1"},
          .dtype = "bfloat16",
          .learning_rate = 0.1,
          .momentum = 0.9,
          .weight_decay = 1e-4,
          .batch_sizes = {4, 0, 3},
          .accumulate = 2,
          .epochs = 3,
          .shuffle = true,
          .seed = std::numeric_limits<int64_t>::max(),
          .resume = true,
          .stop_after = 5,
          .evaluate = true,
          .write_gradients = {1, 2},
          .write_state = {12}};
}

std::vector<std::string> CaseSeeds() {
  return {FormatCase({.name = "even", .model = "lenet", .batch_sizes = {2, 2}}),
          FormatCase(ExampleCase())};
}

RankOutput ExampleRankOutput() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {.rank = 1,
          .world_size = 3,
          .software = "a trainer é \"1.0\"",
          .steps = {{.epoch = 0, .indices = {0, 2, 4}, .loss = 2.25},
                    {.epoch = 7},
                    {.epoch = 8,
                     .indices = {std::numeric_limits<int64_t>::max()},
                     .loss = -kInfinity}},
          .evaluation = EvaluationOutput{
              .indices = {1}, .loss = 0.1, .accuracy = 1, .count = 5}};
}

std::vector<std::string> RankOutputSeeds() {
  RankOutput no_number = ExampleRankOutput();
  no_number.steps[0].loss = std::nan("");
  return {FormatRankOutput(ExampleRankOutput()), FormatRankOutput(no_number),
          FormatRankOutput({}),
          FormatRankOutput({.unsupported = "there is no bfloat16"})};
}

}  // namespace lockstep::conformance
