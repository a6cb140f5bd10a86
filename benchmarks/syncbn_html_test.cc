// The page: nothing outside it, and nothing in it that its strings could break.
#include "benchmarks/syncbn_html.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "benchmarks/chart_js.h"
#include "benchmarks/html_page.h"
#include "benchmarks/syncbn_example.h"
#include "benchmarks/syncbn_json.h"
#include "benchmarks/syncbn_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
std::string OwnText(const SyncBnReport& report) {
  return absl::StrReplaceAll(FormatSyncBnHtml(report),
                             {{ChartJs(), "(Chart.js)"}});
}

TEST(SyncBnHtmlTest, LoadsNothing) {
  const std::string page = OwnText(ExampleSyncBnReport());
  for (const char* loader :
       {"http:", "https:", "src=", "href=", "<link", "<img", "<iframe", "url(",
        "@import", "fetch(", "XMLHttpRequest", "import "}) {
    EXPECT_THAT(page, Not(HasSubstr(loader)));
  }
}

TEST(SyncBnHtmlTest, FillsEveryMarkerAndClosesEveryElement) {
  const std::string page = OwnText(ExampleSyncBnReport());
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

TEST(SyncBnHtmlTest, HoldsTheReport) {
  const SyncBnReport report = ExampleSyncBnReport();
  EXPECT_THAT(FormatSyncBnHtml(report),
              HasSubstr(absl::StrCat(
                  "const report = ", JsonForScript(SyncBnJson(report)), ";")));
}

TEST(SyncBnHtmlTest, KeepsHostileStringsInsideTheirElement) {
  SyncBnReport report = ExampleSyncBnReport();
  const std::string plain = OwnText(report);
  report.command = "</script><script>alert(1)</script><!-- <b> /*SCRIPT*/";
  report.peer = "</table>";
  const std::string page = OwnText(report);
  for (const char* part : {"<script", "</script", "<!--", "<b>", "</table"}) {
    EXPECT_EQ(Count(page, part), Count(plain, part)) << part;
  }
}

}  // namespace
}  // namespace lockstep
