// The page: nothing outside it, and nothing in it that its strings could break.
#include "benchmarks/scaling_html.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "benchmarks/chart_js.h"
#include "benchmarks/scaling_example.h"
#include "benchmarks/scaling_json.h"
#include "benchmarks/scaling_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Count(absl::string_view text, absl::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != absl::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

// The page without Chart.js, whose comments name its home page.
std::string OwnText(const ScalingReport& report) {
  return absl::StrReplaceAll(FormatScalingHtml(report),
                             {{ChartJs(), "(Chart.js)"}});
}

// The report that the page's script reads.
nlohmann::ordered_json EmbeddedReport(const std::string& page) {
  constexpr absl::string_view kStart = "const report = ";
  const size_t start = page.find(std::string(kStart)) + kStart.size();
  const size_t end = page.find(";\n</script>", start);
  return nlohmann::ordered_json::parse(page.substr(start, end - start), nullptr,
                                       /*allow_exceptions=*/false);
}

TEST(ScalingHtmlTest, LoadsNothing) {
  const std::string page = OwnText(ExampleReport());
  for (const char* loader :
       {"http:", "https:", "src=", "href=", "<link", "<img", "<iframe", "url(",
        "@import", "fetch(", "XMLHttpRequest", "import "}) {
    EXPECT_THAT(page, Not(HasSubstr(loader)));
  }
}

TEST(ScalingHtmlTest, HoldsTheWholeOfChartJs) {
  ASSERT_GT(ChartJs().size(), 100000u);
  EXPECT_THAT(std::string(ChartJs().substr(0, 200)), HasSubstr("Chart.js v"));
  EXPECT_EQ(Count(FormatScalingHtml(ExampleReport()), ChartJs()), 1);
  // What would end its element or begin an HTML comment inside it.
  EXPECT_FALSE(absl::StrContains(absl::AsciiStrToLower(ChartJs()), "</script"));
  EXPECT_FALSE(absl::StrContains(ChartJs(), "<!--"));
}

TEST(ScalingHtmlTest, FillsEveryMarkerAndClosesEveryElement) {
  const std::string page = OwnText(ExampleReport());
  for (const char* marker :
       {"/*STYLE*/", "/*CHART_JS*/", "/*REPORT*/", "/*SCRIPT*/"}) {
    EXPECT_THAT(page, Not(HasSubstr(marker)));
  }
  EXPECT_TRUE(absl::StartsWith(page, "<!DOCTYPE html>"));
  EXPECT_TRUE(absl::EndsWith(page, "</html>\n"));
  for (const char* name : {"html", "head", "body", "style", "script", "main",
                           "section", "dl", "table", "noscript"}) {
    const int open = Count(page, absl::StrCat("<", name, ">")) +
                     Count(page, absl::StrCat("<", name, " "));
    EXPECT_GE(open, 1) << name;
    EXPECT_EQ(open, Count(page, absl::StrCat("</", name, ">"))) << name;
  }
}

TEST(ScalingHtmlTest, HoldsTheReport) {
  const ScalingReport report = ExampleReport();
  EXPECT_EQ(EmbeddedReport(FormatScalingHtml(report)), ScalingJson(report));
}

TEST(ScalingHtmlTest, KeepsHostileStringsInsideTheirElement) {
  ScalingReport report = ExampleReport();
  const std::string plain = OwnText(report);
  report.command =
      "</script><script>alert(1)</script><!-- <b> \" ' \\ \n \u2028 /*SCRIPT*/";
  report.machine.cpu = "Example\xff";  // Not UTF-8.
  const std::string page = OwnText(report);
  for (const char* part : {"<script", "</script", "<!--", "<b>"}) {
    EXPECT_EQ(Count(page, part), Count(plain, part)) << part;
  }
  const nlohmann::ordered_json embedded = EmbeddedReport(page);
  EXPECT_EQ(embedded["command"], report.command);
  EXPECT_EQ(embedded["machine"]["cpu"], "Example\uFFFD");
}

}  // namespace
}  // namespace lockstep
