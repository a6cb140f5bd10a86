// The page: nothing outside it, and nothing in it that its strings could break.
#include "benchmarks/scaling_html.h"

#include <string>

#include "benchmarks/scaling_example.h"
#include "benchmarks/scaling_json.h"
#include "benchmarks/scaling_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "report/page_checks.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(ScalingHtmlTest, IsAWholePageThatLoadsNothing) {
  const std::string page = FormatScalingHtml(ExampleReport());
  ExpectWholePage(page);
  EXPECT_THAT(page, HasSubstr("<h1>Lockstep scaling report</h1>"));
  EXPECT_THAT(page, HasSubstr("or read scaling.json."));
}

TEST(ScalingHtmlTest, HoldsTheReport) {
  const ScalingReport report = ExampleReport();
  EXPECT_EQ(EmbeddedReport(FormatScalingHtml(report)), ScalingJson(report));
}

TEST(ScalingHtmlTest, KeepsHostileStringsInsideTheirElement) {
  ScalingReport report = ExampleReport();
  const std::string plain = FormatScalingHtml(report);
  report.command =
      "</script><script>alert(1)</script><!-- <b> \" ' \\ \n \u2028 /*SCRIPT*/";
  report.machine.cpu = "Example\xff";  // Not UTF-8.
  const std::string page = FormatScalingHtml(report);
  ExpectSameElements(page, plain);
  const nlohmann::ordered_json embedded = EmbeddedReport(page);
  EXPECT_EQ(embedded["command"], report.command);
  EXPECT_EQ(embedded["machine"]["cpu"], "Example\uFFFD");
}

}  // namespace
}  // namespace lockstep
