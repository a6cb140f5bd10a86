#include "benchmarks/scaling/bars.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/data_types.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/scaling/results.h"
#include "benchmarks/scaling/settings.h"
#include "models/networks/networks.h"
#include "models/train/device.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kRanks = 2;
constexpr double kWeakPercent = 97;
constexpr double kStrongPercent = 95;
constexpr double kControlPercent = 97;  // Percent of a control below its goal.

// A case with a bar, for images of 1x28x28.
struct BarCase {
  ScalingMode mode;
  const char* model;
  int64_t batch;  // Global in strong scaling, a rank's in weak scaling.
  double needed;  // Percent of ideal.
  bool ddp;       // Whether DistributedDataParallel is a bar, too.
};
constexpr BarCase kBarCases[] = {
    {ScalingMode::kWeak, "lenet", 256, kWeakPercent, true},
    {ScalingMode::kStrong, "lenet", 256, kStrongPercent, false},
    {ScalingMode::kWeak, "resnet18_d2l", 32, kWeakPercent, true}};

std::string CaseText(const BarCase& bar) {
  return absl::StrCat(Name(bar.mode), " scaling of ", bar.model);
}

// Returns the report of kRanks ranks of that backend, or null if the run
// measured another case or did not measure one rank.
const ConfigurationReport* FindCase(const ScalingReport& report,
                                    const BarCase& bar, RankKind ranks) {
  const ScalingSettings& settings = report.settings;
  const NetworkInput input;
  if (settings.model != bar.model || settings.batch_size != bar.batch ||
      settings.input.shape() != input.shape()) {
    return nullptr;
  }
  for (const ModeReport& mode : report.modes) {
    if (mode.mode != bar.mode || mode.variant.ranks != ranks ||
        mode.variant.type != DataType::kFloat32 ||
        mode.baseline().world_size() != 1) {
      continue;
    }
    for (const ConfigurationReport& at : mode.configurations) {
      if (at.world_size() == kRanks) return &at;
    }
  }
  return nullptr;
}

std::optional<double> PercentOfIdeal(const ScalingReport& report,
                                     const BarCase& bar, RankKind ranks) {
  const ConfigurationReport* const at = FindCase(report, bar, ranks);
  if (at == nullptr) return std::nullopt;
  return 100 * at->efficiency;
}

// Returns the control's efficiency in percent of ideal, if it is below the
// goal.
std::optional<double> ControlBelowGoal(const ScalingReport& report,
                                       const BarCase& bar) {
  const std::optional<double> control =
      PercentOfIdeal(report, bar, RankKind::kApart);
  if (!control || *control >= bar.needed) return std::nullopt;
  return control;
}

}  // namespace

std::vector<report::Bar> BarsOf(const ScalingReport& report) {
  std::vector<report::Bar> bars;
  if (report.settings.device == ComputeDevice::kCuda) return bars;
  for (const BarCase& bar : kBarCases) {
    const ConfigurationReport* const at =
        FindCase(report, bar, RankKind::kProcesses);
    // Ranks that share a core say nothing about the goal.
    const bool judged = at == nullptr || !at->oversubscribed;
    const std::optional<double> ours =
        PercentOfIdeal(report, bar, RankKind::kProcesses);
    report::Bar& goal = bars.emplace_back(
        report::Bar{.what = absl::StrCat(CaseText(bar), ", ", kRanks, " ranks"),
                    .needed = bar.needed,
                    .unit = "percent of ideal",
                    .value = ours,
                    .judged = judged});
    if (const auto control = ControlBelowGoal(report, bar); control) {
      goal.needed = kControlPercent / 100 * *control;
      goal.unit =
          absl::StrCat("percent, ", kControlPercent, "% of the control");
    }
    if (!bar.ddp) continue;
    const std::optional<double> ddp =
        PercentOfIdeal(report, bar, RankKind::kDdp);
    std::optional<double> ratio;
    if (ours && ddp) ratio = *ours / *ddp;
    bars.push_back({.what = absl::StrCat(CaseText(bar), " over DDP's"),
                    .needed = 1,
                    .unit = "times DistributedDataParallel's",
                    .value = ratio,
                    .judged = judged});
  }
  return bars;
}

std::vector<std::string> ControlRemarks(const ScalingReport& report) {
  std::vector<std::string> remarks;
  if (report.settings.device == ComputeDevice::kCuda) return remarks;
  for (const BarCase& bar : kBarCases) {
    const std::optional<double> control = ControlBelowGoal(report, bar);
    if (!control) continue;
    remarks.push_back(absl::StrFormat(
        "The machine forbids %g%% of ideal in %s at %d ranks: the same "
        "processes without communication (apart), the control, reach %.1f%% in "
        "this run. The bar is %g%% of that.",
        bar.needed, CaseText(bar), kRanks, *control, kControlPercent));
  }
  return remarks;
}

report::Term BarsTerm() {
  return {"bars",
          absl::StrCat(
              "goals for ", kRanks,
              " processes in float32. The efficiency in weak scaling, of lenet "
              "at 256 and resnet18_d2l at 32 images a rank, must be at least ",
              kWeakPercent,
              "% and that of --peers=torch; in strong scaling, of lenet at 256 "
              "images, at least ",
              kStrongPercent,
              "%. The control is the same processes without communication, "
              "measured with --backend=processes,apart. If the control is "
              "below a goal, the goal is ",
              kControlPercent, "% of the control.")};
}

}  // namespace lockstep::benchmarks
