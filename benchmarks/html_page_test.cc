// What goes into a page, and what its strings cannot do there.
#include "benchmarks/html_page.h"

#include <string>

#include "benchmarks/chart_js.h"
#include "benchmarks/report_page_css.h"
#include "benchmarks/report_page_js.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(JsonForScriptTest, IsAsciiWithoutLessThan) {
  const std::string text = JsonForScript({{"<key>", "a<b \u00e9 \u2029"}});
  EXPECT_EQ(text, R"({"\u003ckey>":"a\u003cb \u00e9 \u2029"})");
}

TEST(FormatPageTest, FillsTheMarkersOnce) {
  const std::string page =
      FormatPage({.html = "a/*STYLE*/b/*CHART_JS*/c/*REPORT*/d/*SCRIPT*/e",
                  .css = "own style",
                  .script = "own script /*REPORT*/"},
                 {{"key", "/*SCRIPT*/"}});
  std::string want = "a";
  want.append(ReportPageCss().data(), ReportPageCss().size());
  want += "own styleb";
  want.append(ChartJs().data(), ChartJs().size());
  want += "c{\"key\":\"/*SCRIPT*/\"}d";
  want.append(ReportPageJs().data(), ReportPageJs().size());
  want += "own script /*REPORT*/e";
  EXPECT_EQ(page, want);
}

}  // namespace
}  // namespace lockstep
