// The report as JSON.
#include <cmath>

#include "conformance/report/conformance_report.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

const char* OutcomeName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kHolds:
      return "passed";
    case Verdict::kInPart:
      return "in_part";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kNotRun:
      return "not_run";
    case Verdict::kFailed:
      break;
  }
  return "failed";
}

Json CellJson(int world_size, const ClaimCell& cell) {
  Json json = {{"world_size", world_size},
               {"outcome", OutcomeName(VerdictOf(cell))},
               {"error_over_allowed", nullptr},
               {"exact", cell.exact},
               {"cases", cell.cases},
               {"text", CellText(cell)}};
  if (std::isfinite(cell.error_over_allowed)) {
    json["error_over_allowed"] = cell.error_over_allowed;
  }
  return json;
}

Json ClaimJson(const ClaimReport& claim) {
  Json rows = Json::array();
  for (const ClaimRow& row : claim.rows) {
    Json cells = Json::array();
    for (const auto& [world_size, cell] : row.cells) {
      cells.push_back(CellJson(world_size, cell));
    }
    rows.push_back(
        {{"backend", row.backend}, {"types", row.types}, {"cells", cells}});
  }
  Json missing = Json::array();
  for (const MissingCells& row : claim.missing) {
    missing.push_back({{"backend", row.backend},
                       {"test", row.test},
                       {"cells", row.cells},
                       {"expected", row.expected}});
  }
  Json gpu_rows = Json::array();
  for (const GpuRow& row : claim.gpu_rows) {
    gpu_rows.push_back({{"backend", row.backend},
                        {"test", row.test},
                        {"asks", row.asks},
                        {"outcome", OutcomeName(row.verdict)},
                        {"why", row.why}});
  }
  return {{"name", claim.name},
          {"says", claim.says},
          {"allowed", claim.allowed},
          {"test", claim.test},
          {"outcome", OutcomeName(VerdictOf(claim))},
          {"failed_tests", claim.failed_tests},
          {"rows", rows},
          {"gpu_rows", gpu_rows},
          {"missing", missing}};
}

Json TotalsJson(const ReportTotals& totals) {
  return {{"claims_hold", totals.claims_hold},
          {"claims_in_part", totals.claims_in_part},
          {"claims_not_run", totals.claims_not_run},
          {"claims_failed", totals.claims_failed},
          {"tests_passed", totals.tests_passed},
          {"tests_failed", totals.tests_failed},
          {"tests_skipped", totals.tests_skipped},
          {"targets_older", totals.targets_older},
          {"configurations", totals.configurations}};
}

// The lists that are not of claims.
void AddLists(const ConformanceReport& report, Json& json) {
  json["failures"] = Json::array();
  for (const Failure& failure : report.failures) {
    json["failures"].push_back({{"target", failure.target},
                                {"test", failure.test},
                                {"what", failure.what}});
  }
  json["skipped"] = Json::array();
  for (const Skip& skip : report.skips) {
    json["skipped"].push_back(
        {{"target", skip.target}, {"tests", skip.tests}, {"why", skip.why}});
  }
  json["targets"] = Json::array();
  for (const TargetSummary& target : report.targets) {
    json["targets"].push_back({{"label", target.label},
                               {"passed", target.passed},
                               {"failed", target.failed},
                               {"skipped", target.skipped},
                               {"seconds", target.seconds},
                               {"started", target.started},
                               {"older", target.older},
                               {"configurations", target.configurations}});
  }
}

}  // namespace

nlohmann::ordered_json ReportJson(const ConformanceReport& report) {
  Json json = {{"command", report.command},
               {"created", report.created},
               {"commit", report.commit},
               {"committed", report.committed},
               {"testlogs", report.testlogs},
               {"first_started", report.first_started},
               {"last_started", report.last_started},
               {"machine",
                {{"cpu", report.machine.cpu},
                 {"cores", report.machine.cores},
                 {"memory_bytes", report.machine.memory_bytes},
                 {"system", report.machine.system}}},
               {"versions", Json::object()},
               {"totals", TotalsJson(TotalsOf(report))},
               {"world_sizes", report.world_sizes},
               {"claims", Json::array()}};
  for (const auto& [what, version] : report.versions) {
    json["versions"][what] = version;
  }
  for (const ClaimReport& claim : report.claims) {
    json["claims"].push_back(ClaimJson(claim));
  }
  AddLists(report, json);
  return json;
}

}  // namespace lockstep
