#include "benchmarks/scaling/settings.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/communicator.h"
#include "models/networks/networks.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kMinSteps = 10;
constexpr int kMaxSteps = 60;

}  // namespace

const char* Name(ScalingMode mode) {
  return mode == ScalingMode::kStrong ? "strong" : "weak";
}

std::vector<int> DefaultWorldSizes(int devices) {
  std::vector<int> sizes;
  const int most = std::clamp(devices, 1, kMaxWorldSize);
  for (int size = 1; size < most; size *= 2) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

absl::StatusOr<std::vector<int>> ParseWorldSizes(absl::string_view text,
                                                 int all_gpus) {
  std::set<int> sizes;
  for (const absl::string_view field : absl::StrSplit(text, ',')) {
    if (field == "-1" && all_gpus > 0) {
      sizes.insert(std::min(all_gpus, kMaxWorldSize));
      continue;
    }
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

absl::StatusOr<std::vector<RankKind>> ParseBackends(absl::string_view text) {
  return ParseNames<RankKind>("--backend", text,
                              {{"processes", RankKind::kProcesses},
                               {"tcp", RankKind::kTcp},
                               {"threads", RankKind::kThreads},
                               {"mpi", RankKind::kMpi},
                               {"apart", RankKind::kApart},
                               {"ddp", RankKind::kDdp}});
}

absl::StatusOr<std::vector<RankKind>> ParsePeers(absl::string_view text) {
  if (text.empty()) return std::vector<RankKind>();
  return ParseNames<RankKind>("--peers", text, {{"torch", RankKind::kDdp}});
}

absl::StatusOr<std::vector<DataType>> ParseTypes(absl::string_view text) {
  return ParseNames<DataType>(
      "--type", text,
      {{"float32", DataType::kFloat32}, {"bfloat16", DataType::kBFloat16}});
}

absl::Status Validate(const ScalingSettings& settings) {
  const absl::Status model = HasBatchNorm(settings.model).status();
  if (!model.ok()) return FlagError("model", settings.model, model.message());
  if (!(settings.learning_rate > 0 &&
        std::isfinite(static_cast<float>(settings.learning_rate)))) {
    return FlagError("lr", settings.learning_rate, "must be a positive number");
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
  return CheckSeconds("--seconds", settings.seconds);
}

std::vector<Variant> VariantsOf(const ScalingSettings& settings) {
  std::vector<Variant> variants;
  for (const RankKind ranks : settings.backends) {
    for (const DataType type : settings.types) {
      variants.push_back({ranks, type});
    }
  }
  return variants;
}

std::string NameOf(const ScalingSettings& settings, const Variant& variant) {
  std::vector<std::string> names;
  if (settings.backends.size() > 1) names.push_back(Name(variant.ranks));
  if (settings.types.size() > 1) names.push_back(Name(variant.type));
  return absl::StrJoin(names, ", ");
}

Configuration ConfigurationOf(const ScalingSettings& settings, ScalingMode mode,
                              int world_size, const Variant& variant) {
  const int64_t factor = mode == ScalingMode::kWeak ? world_size : 1;
  Configuration configuration = {.world_size = world_size,
                                 .global_batch = settings.batch_size * factor,
                                 .ranks = variant.ranks,
                                 .type = variant.type,
                                 .device = settings.device};
  if (world_size == 1 && variant.ranks != RankKind::kDdp) {
    configuration.ranks = *std::ranges::find_if(
        settings.backends,
        [](RankKind ranks) { return ranks != RankKind::kDdp; });
  }
  return configuration;
}

std::vector<Configuration> DistinctConfigurations(
    const ScalingSettings& settings) {
  std::vector<Configuration> distinct;
  for (const int world_size : settings.world_sizes) {
    for (const Variant& variant : VariantsOf(settings)) {
      for (const ScalingMode mode : settings.modes) {
        const Configuration c =
            ConfigurationOf(settings, mode, world_size, variant);
        if (std::ranges::count(distinct, c) == 0) distinct.push_back(c);
      }
    }
  }
  return distinct;
}

int RoundsWithin(double seconds, int rounds, const RunCost& round) {
  const double shortest =
      round.fixed_seconds + kMinSteps * std::max(round.step_seconds, 1e-9);
  return static_cast<int>(std::clamp<double>(seconds / shortest, 1, rounds));
}

int StepsWithin(double seconds, int rounds, const RunCost& round) {
  const double steps = (seconds / rounds - round.fixed_seconds) /
                       std::max(round.step_seconds, 1e-9);
  return static_cast<int>(std::clamp<double>(steps, kMinSteps, kMaxSteps));
}

}  // namespace lockstep::benchmarks
