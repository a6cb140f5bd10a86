// Keys only: every number comes from the report.
#include "benchmarks/syncbn/json.h"

#include <optional>
#include <string>
#include <utility>

#include "base/data_types.h"
#include "benchmarks/syncbn/plan.h"
#include "report/write_json.h"

namespace lockstep::benchmarks {
namespace {

using Json = nlohmann::ordered_json;

Json Optional(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json();
}

Json TextOrNull(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json SpreadJson(const CallSpread& spread) {
  return {{"median", spread.median}, {"p25", spread.p25},
          {"p75", spread.p75},       {"min", spread.min},
          {"max", spread.max},       {"samples", spread.samples}};
}

Json OptionalSpread(const std::optional<CallSpread>& spread) {
  return spread.has_value() ? SpreadJson(*spread) : Json();
}

Json SplitJson(const CallSplit& split) {
  return {{"kernels", split.kernels},
          {"communication", split.communication},
          {"wait", split.wait},
          {"other", split.other}};
}

// The key of a pass that has it.
const char* LocalKey(SyncBnSubject local) {
  return local == SyncBnSubject::kLocal ? "local" : "own_local";
}

Json PassJson(const PassReport& pass) {
  return {{"local", OptionalSpread(pass.local)},
          {"own_local", SpreadJson(pass.own_local)},
          {"faster_local", LocalKey(pass.FasterLocal())},
          {"sync", SpreadJson(pass.sync)},
          {"torch", OptionalSpread(pass.torch)},
          {"message", pass.message},
          {"ratio", pass.Ratio()},
          {"beyond", pass.Beyond()},
          {"torch_ratio", Optional(pass.ToTorch())},
          {"split", SplitJson(pass.split)},
          {"timers", pass.timers}};
}

Json KernelsJson(const LayerReport& layer) {
  Json kernels = Json::array();
  for (const KernelReport& kernel : layer.kernels) {
    kernels.push_back({{"kernel", Name(kernel.kernel)},
                       {"seconds", kernel.seconds},
                       {"bytes", kernel.bytes},
                       {"bound_seconds", Optional(kernel.bound_seconds)},
                       {"bound_fraction", Optional(kernel.Fraction())}});
  }
  return kernels;
}

Json LayerJson(const LayerReport& layer) {
  Json passes = Json::object();
  for (const PassReport& pass : layer.passes) {
    passes[Name(pass.pass)] = PassJson(pass);
  }
  return {{"set", Name(layer.shape.set)},
          {"shape", Name(layer.shape)},
          {"n", layer.shape.n},
          {"h", layer.shape.h},
          {"w", layer.shape.w},
          {"c", layer.shape.c},
          {"rounds", layer.rounds},
          {"tensor_bytes", layer.tensor_bytes},
          {"forward_message_bytes", layer.forward_message},
          {"backward_message_bytes", layer.backward_message},
          {"copy_bandwidth", layer.copy_bandwidth},
          {"wrong", layer.wrong},
          {"passes", std::move(passes)},
          {"kernels", KernelsJson(layer)}};
}

Json NetworkJson(const std::optional<NetworkReport>& network) {
  if (!network.has_value()) return Json();
  return {{"model", "resnet18"},
          {"per_rank_batch", network->batch},
          {"rounds", network->rounds},
          {"local", SpreadJson(network->local)},
          {"sync", SpreadJson(network->sync)},
          {"share", network->Share()},
          {"split", SplitJson(network->split)},
          {"timers", network->timers},
          {"messages", network->messages},
          {"message_bytes", network->message_bytes},
          {"wrong", network->wrong}};
}

Json BarsJson(const SyncBnReport& report) {
  Json bars = Json::array();
  for (const SyncBnBar& bar : BarsOf(report)) {
    bars.push_back({{"shape", Name(bar.shape)},
                    {"against", LocalKey(bar.against)},
                    {"at_most", kMostBeyond},
                    {"value", bar.value},
                    {"met", bar.Met()}});
  }
  return bars;
}

Json SettingsJson(const SyncBnSettings& settings) {
  return {{"world_size", settings.world_size},
          {"backend", BackendName(settings)},
          {"threads_per_rank", 1},
          {"layout", Name(settings.layout)},
          {"dtype", Name(settings.type)},
          {"rounds", settings.rounds},
          {"seconds", settings.seconds},
          {"seed", settings.seed}};
}

}  // namespace

Json SyncBnJson(const SyncBnReport& report) {
  Json layers = Json::array();
  for (const LayerReport& layer : report.layers) {
    layers.push_back(LayerJson(layer));
  }
  return {{"report", "lockstep.syncbn"},
          {"schema_version", kSyncBnSchemaVersion},
          {"created", report.created},
          {"command", report.command},
          {"commit", TextOrNull(report.commit)},
          {"machine", MachineJson(report.machine)},
          {"gpu", TextOrNull(report.gpu)},
          {"shared_gpu", report.shared_gpu},
          {"settings", SettingsJson(report.settings)},
          {"peer", TextOrNull(report.peer)},
          {"not_available", report.missing},
          {"layers", std::move(layers)},
          {"network", NetworkJson(report.network)},
          {"bars", BarsJson(report)},
          {"no_bar", TextOrNull(WhyNoBar(report))}};
}

std::string FormatSyncBnJson(const SyncBnReport& report) {
  return SyncBnJson(report).dump(2, ' ', false,
                                 Json::error_handler_t::replace) +
         "\n";
}

}  // namespace lockstep::benchmarks
