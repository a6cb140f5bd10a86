// Keys only: every number comes from the report.
#include "benchmarks/sampler/json.h"

#include <optional>
#include <string>
#include <utility>

#include "benchmarks/sampler/plan.h"
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

Json RowJson(const DrawRow& row) {
  const bool table = row.subject == DrawSubject::kTable;
  return {{"subject", Name(row.subject)},
          {"count", table ? Json() : Json(row.count)},
          {"crc32", table ? Json() : Json(row.checksum)},
          {"median", row.median},
          {"min", row.min},
          {"max", row.max},
          {"seconds", row.seconds},
          {"indices_per_second", Optional(row.indices_per_second)},
          {"ratio_table", Optional(row.table_ratio)},
          {"ratio_torch", Optional(row.torch_ratio)}};
}

Json SizesJson(const SamplerReport& report) {
  Json sizes = Json::array();
  for (const DrawRows& rows : report.sizes) {
    Json draws = Json::array();
    for (const DrawRow& row : rows.rows) draws.push_back(RowJson(row));
    sizes.push_back({{"dataset_size", rows.size},
                     {"rounds", rows.rounds},
                     {"draws", std::move(draws)}});
  }
  return sizes;
}

Json KeyedJson(const std::optional<KeyedRow>& row) {
  if (!row.has_value()) return Json();
  return {{"dataset_size", row->size},
          {"block", row->block},
          {"indices_per_second",
           {{"median", row->median}, {"min", row->min}, {"max", row->max}}},
          {"seconds_per_index", row->seconds_per_index},
          {"memory_bytes", row->memory_bytes}};
}

Json BarsJson(const SamplerReport& report) {
  Json bars = Json::array();
  for (const Bar& bar : BarsOf(report)) {
    bars.push_back({{"what", bar.what},
                    {bar.at_most ? "at_most" : "at_least", bar.needed},
                    {"unit", bar.unit},
                    {"value", Optional(bar.value)},
                    {"met", bar.value ? Json(bar.Met()) : Json()}});
  }
  return bars;
}

}  // namespace

Json SamplerJson(const SamplerReport& report) {
  return {{"report", "lockstep.sampler"},
          {"schema_version", kSamplerSchemaVersion},
          {"created", report.created},
          {"command", report.command},
          {"commit", TextOrNull(report.commit)},
          {"machine", MachineJson(report.machine)},
          {"settings",
           {{"world_size", kDrawWorldSize},
            {"rank", kDrawRank},
            {"seed", kDrawSeed},
            {"epoch", kDrawEpoch},
            {"paddle_batch_size", kDrawBatchSize},
            {"rounds", report.settings.rounds},
            {"seconds", report.settings.seconds}}},
          {"peer", TextOrNull(report.peer)},
          {"not_available", TextOrNull(report.missing)},
          {"results", SizesJson(report)},
          {"keyed", KeyedJson(report.keyed)},
          {"bars", BarsJson(report)}};
}

std::string FormatSamplerJson(const SamplerReport& report) {
  return SamplerJson(report).dump(2, ' ', false,
                                  Json::error_handler_t::replace) +
         "\n";
}

}  // namespace lockstep::benchmarks
