#include "benchmarks/scaling/plan.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kMinSteps = 10;
constexpr int kMaxSteps = 60;

RunCost Sum(std::span<const RunCost> costs) {
  RunCost sum;
  for (const RunCost& cost : costs) {
    sum.fixed_seconds += cost.fixed_seconds;
    sum.step_seconds += cost.step_seconds;
  }
  return sum;
}

}  // namespace

const char* Name(ScalingMode mode) {
  return mode == ScalingMode::kStrong ? "strong" : "weak";
}

std::vector<int> DefaultWorldSizes(int cores) {
  std::vector<int> sizes;
  const int most = std::clamp(cores, 1, kMaxWorldSize);
  for (int size = 1; size < most; size *= 2) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

absl::StatusOr<std::vector<int>> ParseWorldSizes(absl::string_view text) {
  std::set<int> sizes;
  for (const absl::string_view field : absl::StrSplit(text, ',')) {
    int size = 0;
    if (!absl::SimpleAtoi(field, &size) || size < 1 || size > kMaxWorldSize) {
      return absl::InvalidArgumentError(
          absl::StrCat("--world_sizes: '", field,
                       "' is not a number between 1 and ", kMaxWorldSize));
    }
    sizes.insert(size);
  }
  return std::vector<int>(sizes.begin(), sizes.end());
}

absl::StatusOr<std::vector<ScalingMode>> ParseModes(absl::string_view text) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::vector<ScalingMode> modes,
      ParseNames<ScalingMode>(
          "--mode", text,
          {{"strong", ScalingMode::kStrong}, {"weak", ScalingMode::kWeak}}));
  std::sort(modes.begin(), modes.end());
  return modes;
}

absl::StatusOr<RankKind> ParseRankKind(absl::string_view text) {
  return ParseName<RankKind>(
      "--backend", text,
      {{"processes", RankKind::kProcesses}, {"threads", RankKind::kThreads}});
}

absl::Status Validate(const ScalingSettings& settings) {
  if (settings.model != "lenet") {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: '", settings.model, "' is not lenet"));
  }
  if (settings.dataset != "fashion_mnist") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dataset: '", settings.dataset, "' is not fashion_mnist"));
  }
  for (const absl::Status& status :
       {CheckRange("--batch_size", settings.batch_size, 1, 1 << 20),
        CheckRange("--rounds", settings.rounds, 1, 1000),
        CheckRange("--steps", settings.steps, 0, 1000000),
        CheckRange("--warmup_steps", settings.warmup_steps, 1, 1000000)}) {
    if (!status.ok()) return status;
  }
  for (const Configuration& c : DistinctConfigurations(settings)) {
    if (c.global_batch >= c.world_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch_size: ", c.global_batch, " images are fewer than the ",
        c.world_size, " ranks that --world_sizes asks for"));
  }
  return absl::OkStatus();
}

Configuration ConfigurationOf(const ScalingSettings& settings, ScalingMode mode,
                              int world_size) {
  const int64_t factor = mode == ScalingMode::kWeak ? world_size : 1;
  return {.world_size = world_size,
          .global_batch = settings.batch_size * factor};
}

std::vector<Configuration> DistinctConfigurations(
    const ScalingSettings& settings) {
  std::vector<Configuration> distinct;
  for (const int world_size : settings.world_sizes) {
    for (const ScalingMode mode : settings.modes) {
      const Configuration c = ConfigurationOf(settings, mode, world_size);
      if (distinct.empty() || !(distinct.back() == c)) distinct.push_back(c);
    }
  }
  return distinct;
}

int RoundsWithin(double seconds, int rounds, std::span<const RunCost> costs) {
  const RunCost round = Sum(costs);
  const double shortest =
      round.fixed_seconds + kMinSteps * std::max(round.step_seconds, 1e-9);
  return static_cast<int>(std::clamp<double>(seconds / shortest, 1, rounds));
}

int StepsWithin(double seconds, int rounds, std::span<const RunCost> costs) {
  const RunCost round = Sum(costs);
  const double steps = (seconds / rounds - round.fixed_seconds) /
                       std::max(round.step_seconds, 1e-9);
  return static_cast<int>(std::clamp<double>(steps, kMinSteps, kMaxSteps));
}

}  // namespace lockstep::benchmarks
