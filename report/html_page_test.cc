// What goes into a page, and what its strings cannot do there.
#include "report/html_page.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/chart_js.h"
#include "report/page_checks.h"
#include "report/report_page_css.h"
#include "report/report_page_html.h"
#include "report/report_page_js.h"
#include "report/write_json.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(JsonForScriptTest, IsAsciiWithoutLessThan) {
  const std::string text = JsonForScript({{"<key>", "a<b \u00e9 \u2029"}});
  EXPECT_EQ(text, R"({"\u003ckey>":"a\u003cb \u00e9 \u2029"})");
}

TEST(FormatPageTest, FillsTheMarkersOnce) {
  const std::string page = FormatPage({.title = "own title",
                                       .file = "own.json",
                                       .sections = "own sections\n",
                                       .css = "own style",
                                       .script = "own script /*REPORT*/"},
                                      {{"key", "/*SCRIPT*/"}});
  // No file that is put in has a marker that would be filled after it.
  const std::string want = absl::StrReplaceAll(
      ReportPageHtml(),
      {{"/*TITLE*/", "own title"},
       {"/*FILE*/", "own.json"},
       {"/*SECTIONS*/", "own sections\n"},
       {"/*STYLE*/", absl::StrCat(ReportPageCss(), "own style")},
       {"/*CHART_JS*/", ChartJs()},
       {"/*REPORT*/", "{\"key\":\"/*SCRIPT*/\"}"},
       {"/*SCRIPT*/", absl::StrCat(ReportPageJs(), "own script /*REPORT*/")}});
  EXPECT_EQ(page, want);
  EXPECT_EQ(CountParts(page, "own title"), 2);
}

TEST(FormatPageTest, LeavesChartJsOutOfAPageWithoutCharts) {
  const auto page = [](bool charts) {
    PageParts parts;
    parts.charts = charts;
    return FormatPage(parts, {{"key", "value"}});
  };
  EXPECT_EQ(CountParts(page(true), ChartJs()), 1);
  EXPECT_EQ(CountParts(page(false), ChartJs()), 0);
  EXPECT_EQ(page(true).size() - page(false).size(), ChartJs().size());
}

TEST(FormatPageTest, HoldsTheWholeOfChartJs) {
  ASSERT_GT(ChartJs().size(), 100000u);
  EXPECT_THAT(std::string(ChartJs().substr(0, 200)), HasSubstr("Chart.js v"));
  // What would end its element or begin an HTML comment inside it.
  EXPECT_FALSE(absl::StrContains(absl::AsciiStrToLower(ChartJs()), "</script"));
  EXPECT_FALSE(absl::StrContains(ChartJs(), "<!--"));
}

TEST(PageChecksTest, FindElementsThatStayOpen) {
  EXPECT_TRUE(OpenElements("<html><p id=\"a\">b</p></html>").empty());
  EXPECT_EQ(OpenElements("<html><p id=\"a\">b</html>"), "p");
  EXPECT_EQ(OpenElements("<html></p></html>"), "p");
  EXPECT_EQ(OpenElements("<section><table></section>"), "table");
}

TEST(PageChecksTest, FindWhatALoadingPageHas) {
  EXPECT_EQ(Loader("<p>all here</p>"), "");
  EXPECT_EQ(Loader("<script src=\"chart.js\">"), "src=");
  EXPECT_EQ(Loader("@import 'other.css'"), "@import");
}

}  // namespace
}  // namespace lockstep
