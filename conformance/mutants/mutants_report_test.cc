// The forms of what planting gave.
#include "conformance/mutants/mutants_report.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "conformance/mutants/planted_bug.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/wrap_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

PlantedResult Result(const std::string& folder, const std::string& name,
                     const std::vector<std::string>& checks,
                     const std::string& diagnosis) {
  PlantedResult result;
  result.bug.folder = folder;
  result.bug.name = name;
  result.bug.bug = "samples are lost";
  result.bug.checks = {"Coverage"};
  result.bug.says = "is lost";
  result.caught = {checks, diagnosis};
  result.seconds = 1.5;
  return result;
}

std::vector<PlantedResult> Results() {
  std::vector<PlantedResult> results = {
      Result("sampling", "Named", {"Order", "Coverage"}, "sample 3 is lost"),
      Result("sampling", "Unnamed", {"Coverage"}, "4 of 5"),
      Result("network", "Survivor", {}, ""),
      Result("network", "Elsewhere", {"Order"}, "sample 3 is lost"),
      Result("network", "Failed", {}, "")};
  results[4].error = "DEADLINE_EXCEEDED: rank 1 did not come";
  return results;
}

TEST(MutantsReportTest, CountsWhatIsCaughtAndNamed) {
  const MutantTotals totals = MutantTotalsOf(Results());
  EXPECT_EQ(totals.bugs, 5);
  EXPECT_EQ(totals.caught, 2);
  EXPECT_EQ(totals.named, 1);
  EXPECT_EQ(totals.seconds, 7.5);
}

TEST(MutantsReportTest, SaysWhatBecameOfABug) {
  const std::vector<PlantedResult> results = Results();
  EXPECT_EQ(FormatPlanted(results[0]),
            "sampling.Named: samples are lost\n"
            "  caught by Order, Coverage; the cause is named\n"
            "  sample 3 is lost\n");
  EXPECT_THAT(FormatPlanted(results[1]),
              HasSubstr("caught by Coverage; THE CAUSE IS NOT NAMED: the "
                        "diagnosis lacks 'is lost'\n  4 of 5\n"));
  EXPECT_THAT(FormatPlanted(results[2]),
              HasSubstr("SURVIVES: every check accepts it, must be caught by "
                        "Coverage\n"));
  EXPECT_THAT(FormatPlanted(results[3]),
              HasSubstr("SURVIVES: caught by Order, must be caught by "));
  EXPECT_THAT(FormatPlanted(results[4]),
              AllOf(HasSubstr("SURVIVES: it could not be planted\n"),
                    HasSubstr("rank 1 did not come\n")));
}

TEST(MutantsReportTest, KeepsToItsColumns) {
  PlantedResult result = Results()[0];
  for (int i = 0; i < 50; ++i) result.caught.diagnosis += " and more is lost";
  for (const absl::string_view line :
       absl::StrSplit(FormatPlanted(result), '\n')) {
    EXPECT_LE(line.size(), static_cast<size_t>(kTableColumns)) << line;
  }
}

TEST(MutantsReportTest, AddsUpByFolder) {
  const std::vector<PlantedResult> results = Results();
  EXPECT_THAT(FormatMutantTotals(results),
              AllOf(HasSubstr("sampling          2       2      1      3.0\n"),
                    HasSubstr("network           3       0      0      4.5\n"),
                    HasSubstr("all               5       2      1      7.5\n"),
                    HasSubstr("Surviving: network.Survivor, network.Elsewhere, "
                              "network.Failed\n"),
                    HasSubstr("Caught, but not named: sampling.Unnamed\n"),
                    Not(HasSubstr("Every bug"))));
  EXPECT_THAT(FormatMutantTotals({results.data(), 1}),
              AllOf(HasSubstr("Every bug is caught and named.\n"),
                    Not(HasSubstr("Surviving"))));
}

TEST(MutantsReportTest, HasEveryFieldAsJson) {
  MutantsReport report;
  report.command = "mutants";
  report.results = Results();
  const nlohmann::ordered_json json = MutantsJson(report);
  EXPECT_EQ(json["command"], "mutants");
  EXPECT_EQ(json["totals"]["bugs"], 5);
  EXPECT_EQ(json["totals"]["caught"], 2);
  EXPECT_EQ(json["totals"]["named"], 1);
  const auto& first = json["bugs"][0];
  EXPECT_EQ(first["folder"], "sampling");
  EXPECT_EQ(first["name"], "Named");
  EXPECT_EQ(first["planted"], "samples are lost");
  EXPECT_EQ(first["checks"][0], "Coverage");
  EXPECT_EQ(first["caught_by"].size(), 2);
  EXPECT_EQ(first["diagnosis"], "sample 3 is lost");
  EXPECT_EQ(first["says"], "is lost");
  EXPECT_EQ(first["caught"], true);
  EXPECT_EQ(first["named"], true);
  EXPECT_EQ(first["seconds"], 1.5);
  EXPECT_EQ(json["bugs"][2]["caught"], false);
  EXPECT_EQ(json["bugs"][4]["error"], report.results[4].error);
}

}  // namespace
}  // namespace lockstep
