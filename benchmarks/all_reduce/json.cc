// Keys and units only: every number comes from the report.
#include "benchmarks/all_reduce/json.h"

#include <optional>
#include <string>
#include <utility>

#include "base/data_types.h"
#include "report/write_json.h"

namespace lockstep::benchmarks {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicroseconds = 1e6;
constexpr double kGigabytes = 1e-9;

const char* NcclName(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return "double";
    case DataType::kFloat32:
      return "float";
    case DataType::kFloat16:
      return "half";
    default:
      return Name(type);
  }
}

Json Optional(const std::optional<double>& value, double unit) {
  return value.has_value() ? Json(*value * unit) : Json();
}

Json PlacementJson(const AllReduceRow& row) {
  return {{"time", row.p50 * kMicroseconds},
          {"alg_bw", row.alg_bw * kGigabytes},
          {"bus_bw", row.bus_bw * kGigabytes},
          {"nwrong", row.wrong}};
}

const char* PeerKey(TeamKind peer) {
  return peer == TeamKind::kOpenMpi ? "mpi" : "gloo";
}

Json RowJson(const AllReduceSettings& settings, const AllReduceSize& size,
             const AllReduceRow& row) {
  Json json = {{"size", size.bytes},
               {"count", size.count},
               {"type", NcclName(settings.type)},
               {"redop", Name(settings.op)},
               {"root", -1}};
  const Json placement = PlacementJson(row);
  json.update(placement);
  json[settings.in_place ? "in_place" : "out_of_place"] = placement;
  const bool peer = IsPeer(row.subject.team.kind);
  json["subject"] = Name(row.subject);
  json["backend"] = peer ? Json() : Json(Name(row.subject.team.kind));
  json["algorithm"] = peer ? Json() : Json(Name(row.subject.team.algorithm));
  json["buffers"] = Name(row.subject.buffers);
  for (const auto& [key, seconds] :
       {std::pair("p50", row.p50), std::pair("p95", row.p95),
        std::pair("p99", row.p99), std::pair("mean", row.mean),
        std::pair("min", row.min), std::pair("max", row.max)}) {
    json[key] = seconds * kMicroseconds;
  }
  json["samples"] = row.samples;
  json["rounds"] = size.rounds;
  json["copy_bw"] = size.copy_bw * kGigabytes;
  json["bound"] = Optional(size.bound_seconds, kMicroseconds);
  json["bound_fraction"] = Optional(row.bound_fraction, 1);
  json["ratios"] = Json::object();
  for (const PeerRatio& ratio : row.ratios) {
    json["ratios"][PeerKey(ratio.peer)] = ratio.ratio;
  }
  return json;
}

Json SettingsJson(const AllReduceSettings& settings) {
  return {{"world_size", settings.world_size}, {"dtype", Name(settings.type)},
          {"op", Name(settings.op)},           {"in_place", settings.in_place},
          {"iterations", settings.iterations}, {"warmup", settings.warmup},
          {"rounds", settings.rounds},         {"seconds", settings.seconds}};
}

Json MissingJson(const AllReduceReport& report) {
  Json missing = Json::object();
  for (const MissingPeer& peer : report.missing) {
    missing[PeerKey(peer.peer)] = peer.why;
  }
  return missing;
}

}  // namespace

Json AllReduceJson(const AllReduceReport& report) {
  Json results = Json::array();
  for (const AllReduceSize& size : report.sizes) {
    for (const AllReduceRow& row : size.rows) {
      results.push_back(RowJson(report.settings, size, row));
    }
  }
  return {{"report", "lockstep.allreduce"},
          {"schema_version", kAllReduceSchemaVersion},
          {"created", report.created},
          {"command", report.command},
          {"commit", report.commit.empty() ? Json() : Json(report.commit)},
          {"machine", MachineJson(report.machine)},
          {"settings", SettingsJson(report.settings)},
          {"notes", report.notes},
          {"not_available", MissingJson(report)},
          {"results", std::move(results)}};
}

std::string FormatAllReduceJson(const AllReduceReport& report) {
  return AllReduceJson(report).dump(2, ' ', false,
                                    Json::error_handler_t::replace) +
         "\n";
}

}  // namespace lockstep::benchmarks
