// The forms of the report.
#include "conformance/mutants/mutants_report.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "conformance/mutants/planted_bug.h"
#include "nlohmann/json.hpp"
#include "report/wrap_text.h"

namespace lockstep {
namespace {

constexpr char kMargin[] = "  ";

// The text wrapped, each line after the margin.
std::string Indented(const std::string& text) {
  std::string wrapped = WrapText(text, kTableColumns - 2);
  wrapped.pop_back();  // Its line end.
  return absl::StrCat(
      kMargin,
      absl::StrReplaceAll(wrapped, {{"\n", absl::StrCat("\n", kMargin)}}),
      "\n");
}

std::string Fate(const PlantedResult& result) {
  if (!result.error.empty()) return "SURVIVES: it could not be planted";
  const std::string checks =
      result.caught.checks.empty()
          ? "every check accepts it"
          : absl::StrCat("caught by ",
                         absl::StrJoin(result.caught.checks, ", "));
  if (!result.is_caught()) {
    return absl::StrCat("SURVIVES: ", checks, ", must be caught by ",
                        absl::StrJoin(result.bug.checks, ", "));
  }
  return result.is_named()
             ? absl::StrCat(checks, "; the cause is named")
             : absl::StrCat(checks,
                            "; THE CAUSE IS NOT NAMED: the diagnosis lacks '",
                            result.bug.says, "'");
}

// Those of one folder; `results` are by folder.
std::span<const PlantedResult> FirstFolder(
    std::span<const PlantedResult> results) {
  const auto other = std::find_if(
      results.begin(), results.end(), [&](const PlantedResult& result) {
        return result.bug.folder != results[0].bug.folder;
      });
  return results.first(static_cast<size_t>(other - results.begin()));
}

void AppendRow(const std::string& name, std::span<const PlantedResult> results,
               std::string& out) {
  const MutantTotals totals = MutantTotalsOf(results);
  absl::StrAppendFormat(&out, "%-12s %6d %7d %6d %8.1f\n", name, totals.bugs,
                        totals.caught, totals.named, totals.seconds);
}

}  // namespace

MutantTotals MutantTotalsOf(std::span<const PlantedResult> results) {
  MutantTotals totals;
  for (const PlantedResult& result : results) {
    ++totals.bugs;
    totals.caught += result.is_caught();
    totals.named += result.is_named();
    totals.seconds += result.seconds;
  }
  return totals;
}

std::string FormatPlanted(const PlantedResult& result) {
  return absl::StrCat(
      WrapText(absl::StrCat(FullName(result.bug), ": ", result.bug.bug),
               kTableColumns),
      Indented(Fate(result)),
      Indented(result.error.empty() ? result.caught.diagnosis : result.error));
}

std::string FormatMutantTotals(std::span<const PlantedResult> results) {
  std::string out = absl::StrFormat("%-12s %6s %7s %6s %8s\n", "folder", "bugs",
                                    "caught", "named", "seconds");
  for (auto rest = results; !rest.empty();) {
    const std::span<const PlantedResult> folder = FirstFolder(rest);
    AppendRow(folder[0].bug.folder, folder, out);
    rest = rest.subspan(folder.size());
  }
  AppendRow("all", results, out);
  std::vector<std::string> surviving, unnamed;
  for (const PlantedResult& result : results) {
    if (!result.is_caught()) {
      surviving.push_back(FullName(result.bug));
    } else if (!result.is_named()) {
      unnamed.push_back(FullName(result.bug));
    }
  }
  if (surviving.empty() && unnamed.empty()) {
    return absl::StrCat(out, "\nEvery bug is caught and named.\n");
  }
  absl::StrAppend(&out, "\n");
  if (!surviving.empty()) {
    absl::StrAppend(&out, WrapText(absl::StrCat("Surviving: ",
                                                absl::StrJoin(surviving, ", ")),
                                   kTableColumns));
  }
  if (!unnamed.empty()) {
    absl::StrAppend(&out, WrapText(absl::StrCat("Caught, but not named: ",
                                                absl::StrJoin(unnamed, ", ")),
                                   kTableColumns));
  }
  return out;
}

nlohmann::ordered_json MutantsJson(const MutantsReport& report) {
  nlohmann::ordered_json bugs = nlohmann::ordered_json::array();
  for (const PlantedResult& result : report.results) {
    bugs.push_back({{"folder", result.bug.folder},
                    {"name", result.bug.name},
                    {"planted", result.bug.bug},
                    {"checks", result.bug.checks},
                    {"caught_by", result.caught.checks},
                    {"diagnosis", result.caught.diagnosis},
                    {"says", result.bug.says},
                    {"caught", result.is_caught()},
                    {"named", result.is_named()},
                    {"error", result.error},
                    {"seconds", result.seconds}});
  }
  const MutantTotals totals = MutantTotalsOf(report.results);
  return {{"command", report.command},
          {"created", report.created},
          {"commit", report.commit},
          {"machine",
           {{"cpu", report.machine.cpu},
            {"cores", report.machine.cores},
            {"memory_bytes", report.machine.memory_bytes},
            {"system", report.machine.system}}},
          {"totals",
           {{"bugs", totals.bugs},
            {"caught", totals.caught},
            {"named", totals.named}}},
          {"bugs", bugs}};
}

}  // namespace lockstep
