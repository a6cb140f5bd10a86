#include "tools/gpu_bundle/training_bars.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "report/document.h"
#include "tools/gpu_bundle/stages.h"

namespace lockstep::gpu_bundle {
namespace {

using report::Value;

// A step that has a goal.
struct StepGoal {
  const char* model;
  const char* type;
  int64_t image_size;
  double needed;
};
constexpr StepGoal kStepGoals[] = {
    {"lenet", "float32", 28, 1.3},
    {"resnet18_d2l", "bfloat16", 28, 1.15},
    {"resnet18_d2l", "tf32", 28, 1.05},
    {"resnet50", "bfloat16", 224, 1.1},
    {"resnet34", "bfloat16", 224, 1.1},
    {"vit_small_patch16_224", "bfloat16", 224, 0.95}};
constexpr const char* kModes[] = {"eager", "compile", "graph"};

constexpr char kScalingModel[] = "resnet50";
constexpr double kExposedPercent = 3;

std::string TextOf(const Value& value) {
  const auto* const text = std::get_if<std::string>(&value.variant());
  return text == nullptr ? "" : *text;
}

std::optional<double> NumberOf(const Value& value) {
  if (const auto* const real = std::get_if<double>(&value.variant())) {
    return *real;
  }
  if (const auto* const whole = std::get_if<uint64_t>(&value.variant())) {
    return static_cast<double>(*whole);
  }
  if (const auto* const whole = std::get_if<int64_t>(&value.variant())) {
    return static_cast<double>(*whole);
  }
  return std::nullopt;
}

bool IsTrue(const Value& value) {
  const auto* const truth = std::get_if<bool>(&value.variant());
  return truth != nullptr && *truth;
}

// Returns the ratio of the fastest of PyTorch's modes, if all were measured. A
// subject is called "PyTorch 2.9.0 eager nhwc".
std::optional<double> RatioToFastest(const Value& subjects) {
  std::optional<double> fastest, ratio;
  for (const char* const mode : kModes) {
    bool measured = false;
    for (size_t i = 0; i < subjects.size(); ++i) {
      const std::string name = TextOf(subjects[i]["subject"]);
      const auto seconds = NumberOf(subjects[i]["step"]["median"]);
      const auto over_ours = NumberOf(subjects[i]["ratio"]["median"]);
      if (!absl::StartsWith(name, "PyTorch ") ||
          !absl::StrContains(name, absl::StrCat(" ", mode, " ")) || !seconds ||
          !over_ours) {
        continue;
      }
      measured = true;
      if (!fastest || *seconds < *fastest) {
        fastest = seconds;
        ratio = over_ours;
      }
    }
    if (!measured) return std::nullopt;
  }
  return ratio;
}

std::optional<double> RatioOf(const Value& report, const StepGoal& goal) {
  const Value& results = report["results"];
  for (size_t i = 0; i < results.size(); ++i) {
    const Value& result = results[i];
    if (TextOf(result["model"]) == goal.model &&
        TextOf(result["type"]) == goal.type &&
        TextOf(result["device"]) == "cuda" &&
        NumberOf(result["image_size"]) ==
            static_cast<double>(goal.image_size)) {
      return RatioToFastest(result["subjects"]);
    }
  }
  return std::nullopt;
}

// Returns the percentage of a step in which GPUs wait for sums, with the most
// ranks that have a GPU each.
std::optional<double> ExposedPercentOf(const Value& report) {
  if (TextOf(report["settings"]["model"]) != kScalingModel ||
      TextOf(report["settings"]["device"]) != "cuda") {
    return std::nullopt;
  }
  std::optional<double> percent;
  double most = 1;
  for (size_t i = 0; i < report["modes"].size(); ++i) {
    const Value& all = report["modes"][i]["configurations"];
    for (size_t j = 0; j < all.size(); ++j) {
      const auto ranks = NumberOf(all[j]["world_size"]);
      const auto exposed =
          NumberOf(all[j]["parts_seconds"]["exposed_communication"]);
      const auto step = NumberOf(all[j]["step_seconds"]["mean"]);
      if (!ranks || *ranks <= most || !exposed || !step || !(*step > 0) ||
          IsTrue(all[j]["shared_gpu"])) {
        continue;
      }
      most = *ranks;
      percent = 100 * *exposed / *step;
    }
  }
  return percent;
}

// Returns the first value that a passed stage of this kind of report gives.
template <typename Measure>
std::optional<double> FirstValue(std::span<const StageResult> results,
                                 absl::string_view kind, Measure measure) {
  for (const StageResult& each : results) {
    if (each.outcome != Outcome::kPassed ||
        TextOf(each.numbers["report"]) != kind) {
      continue;
    }
    if (const std::optional<double> value = measure(each.numbers)) return value;
  }
  return std::nullopt;
}

}  // namespace

std::vector<report::Bar> TrainingBars(std::span<const StageResult> results) {
  std::vector<report::Bar> bars;
  for (const StepGoal& goal : kStepGoals) {
    bars.push_back(
        {.what = absl::StrCat("step of ", goal.model, ", ", goal.type, ", ",
                              goal.image_size, "x", goal.image_size),
         .needed = goal.needed,
         .unit = "times PyTorch's best",
         .value = FirstValue(
             results, "lockstep.step",
             [&](const Value& report) { return RatioOf(report, goal); })});
  }
  bars.push_back(
      {.what =
           absl::StrCat("exposed communication of a ", kScalingModel, " step"),
       .needed = kExposedPercent,
       .at_most = true,
       .unit = "percent of the step",
       .value = FirstValue(results, "lockstep.scaling", ExposedPercentOf)});
  return bars;
}

}  // namespace lockstep::gpu_bundle
