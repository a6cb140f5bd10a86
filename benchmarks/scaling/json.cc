// One function for each object of the schema.
#include "benchmarks/scaling/json.h"

#include <string>

#include "report/write_json.h"

namespace lockstep::benchmarks {
namespace {

using Json = nlohmann::ordered_json;

Json PartsJson(const StepParts& parts) {
  return {{"compute", parts.compute},
          {"exposed_communication", parts.exposed_communication},
          {"data_wait", parts.data_wait},
          {"rest", parts.rest}};
}

Json RoundJson(const RoundSample& round) {
  return {{"images_per_second", round.images_per_second},
          {"step_seconds", round.step_seconds},
          {"parts_seconds", PartsJson(round.parts)},
          {"imbalance", round.imbalance},
          {"kept_waiting", round.kept_waiting},
          {"loss", round.loss}};
}

Json ConfigurationJson(const ConfigurationReport& at) {
  Json rounds = Json::array();
  for (const RoundSample& round : at.measured.rounds) {
    rounds.push_back(RoundJson(round));
  }
  return {{"world_size", at.world_size()},
          {"global_batch", at.global_batch()},
          {"oversubscribed", at.oversubscribed},
          {"images_per_second",
           {{"median", at.images_per_second},
            {"min", at.slowest_round},
            {"max", at.fastest_round},
            {"rounds", at.measured.rounds.size()}}},
          {"speedup", at.speedup},
          {"efficiency", at.efficiency},
          {"step_seconds",
           {{"p50", at.step_p50},
            {"p99", at.step_p99},
            {"mean", at.step_seconds()},
            {"steps", at.step_count}}},
          {"parts_seconds", PartsJson(at.parts)},
          {"lost", PartsJson(at.lost)},
          {"imbalance", at.imbalance},
          {"kept_waiting", at.kept_waiting},
          {"rounds", std::move(rounds)}};
}

Json ModeJson(const ModeReport& mode) {
  Json configurations = Json::array();
  for (const ConfigurationReport& at : mode.configurations) {
    configurations.push_back(ConfigurationJson(at));
  }
  return {{"mode", std::string(ScalingModeName(mode.mode))},
          {"baseline_world_size", mode.baseline().world_size()},
          {"limits", mode.limits},
          {"configurations", std::move(configurations)}};
}

Json SettingsJson(const ScalingSettings& settings) {
  return {{"model", settings.model},
          {"dataset", settings.dataset},
          {"backend", std::string(RankKindName(settings.ranks))},
          {"threads_per_rank", 1},
          {"world_sizes", settings.world_sizes},
          {"batch_size", settings.batch_size},
          {"rounds", settings.rounds},
          {"steps", settings.steps},
          {"warmup_steps", settings.warmup_steps}};
}

}  // namespace

Json ScalingJson(const ScalingReport& report) {
  Json modes = Json::array();
  for (const ModeReport& mode : report.modes) modes.push_back(ModeJson(mode));
  return {{"report", "lockstep.scaling"},
          {"schema_version", kScalingSchemaVersion},
          {"created", report.created},
          {"command", report.command},
          {"commit", report.commit.empty() ? Json() : Json(report.commit)},
          {"machine", MachineJson(report.machine)},
          {"settings", SettingsJson(report.settings)},
          {"modes", std::move(modes)}};
}

std::string FormatScalingJson(const ScalingReport& report) {
  return ScalingJson(report).dump(2, ' ', false,
                                  Json::error_handler_t::replace) +
         "\n";
}

}  // namespace lockstep::benchmarks
