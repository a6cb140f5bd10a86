#include "conformance/protocol/protocol_check.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "models/io/fuzz_inputs.h"

namespace lockstep {
namespace {

std::string CheckError(const absl::Status& error) {
  if (!absl::IsDataLoss(error)) {
    return absl::StrCat("an error of another kind: ", error.ToString());
  }
  return CheckMessage(error, "file");
}

bool Ascends(const std::vector<int64_t>& steps) {
  int64_t before = 0;
  for (const int64_t step : steps) {
    if (step <= before) return false;
    before = step;
  }
  return true;
}

bool IsPossible(const Case& c) {
  for (const int64_t size : c.batch_sizes) {
    if (size < 0) return false;
  }
  return c.global_batch() > 0 && c.accumulate > 0 && c.epochs >= 0 &&
         c.seed >= 0 && c.stop_after >= 0 && !c.name.empty() &&
         !c.model.empty() && std::isfinite(c.learning_rate) &&
         std::isfinite(c.momentum) && std::isfinite(c.weight_decay) &&
         Ascends(c.write_gradients) && Ascends(c.write_state);
}

bool IsPossible(const RankOutput& output) {
  const auto natural = [](const std::vector<int64_t>& indices) {
    for (const int64_t index : indices) {
      if (index < 0) return false;
    }
    return true;
  };
  for (const StepOutput& step : output.steps) {
    if (step.epoch < 0 || !natural(step.indices)) return false;
  }
  if (output.evaluation.has_value() &&
      (output.evaluation->count < 0 || !natural(output.evaluation->indices))) {
    return false;
  }
  return output.rank >= 0 && output.rank < output.world_size &&
         output.tensors.empty() &&
         (!output.unsupported.has_value() ||
          (output.steps.empty() && !output.evaluation.has_value()));
}

}  // namespace

std::string CheckCaseText(const std::string& text, bool& accepted) {
  const absl::StatusOr<Case> c = ParseCase(text, "file");
  accepted = c.ok();
  if (!accepted) return CheckError(c.status());
  if (!IsPossible(*c)) return "a case that cannot be";
  const absl::StatusOr<Case> again = ParseCase(FormatCase(*c), "file");
  if (!again.ok()) return "a written case that is refused";
  return *again == *c ? "" : "another case after writing";
}

std::string CheckRankOutputText(const std::string& text, bool& accepted) {
  const absl::StatusOr<RankOutput> output = ParseRankOutput(text, "file");
  accepted = output.ok();
  if (!accepted) return CheckError(output.status());
  if (!IsPossible(*output)) return "an output that cannot be";
  // By its text, in which NaN equals NaN.
  const std::string written = FormatRankOutput(*output);
  const absl::StatusOr<RankOutput> again = ParseRankOutput(written, "file");
  if (!again.ok()) return "a written output that is refused";
  return FormatRankOutput(*again) == written ? "" : "another output after it";
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

}  // namespace lockstep
