// Searches of text: no parser of HTML is needed for pages of our own.
#include "report/page_checks.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/chart_js.h"

namespace lockstep {

using ::testing::HasSubstr;

int CountParts(absl::string_view text, absl::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != absl::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

std::string WithoutChartJs(absl::string_view page) {
  return absl::StrReplaceAll(page, {{ChartJs(), "(Chart.js)"}});
}

std::string Loader(absl::string_view page) {
  for (const char* loader :
       {"http:", "https:", "src=", "href=", "<link", "<img", "<iframe", "url(",
        "@import", "fetch(", "XMLHttpRequest", "import "}) {
    if (absl::StrContains(page, loader)) return loader;
  }
  return "";
}

std::string OpenElements(absl::string_view page) {
  for (const char* name : {"html", "head", "body", "style", "script", "main",
                           "section", "dl", "table", "noscript", "p"}) {
    const int open = CountParts(page, absl::StrCat("<", name, ">")) +
                     CountParts(page, absl::StrCat("<", name, " "));
    if (open != CountParts(page, absl::StrCat("</", name, ">"))) return name;
  }
  return "";
}

void ExpectWholePage(const std::string& page, bool charts) {
  const std::string own = WithoutChartJs(page);
  EXPECT_EQ(CountParts(own, "(Chart.js)"), charts ? 1 : 0);
  EXPECT_TRUE(absl::StartsWith(own, "<!DOCTYPE html>"));
  EXPECT_TRUE(absl::EndsWith(own, "</html>\n"));
  EXPECT_EQ(Loader(own), "");
  EXPECT_EQ(OpenElements(own), "");
  for (const char* part : {"<main>", "<section>", "<table "}) {
    EXPECT_THAT(own, HasSubstr(part));
  }
  for (const char* part : {"<noscript>", "const charts = "}) {
    EXPECT_EQ(CountParts(own, part), charts ? 1 : 0) << part;
  }
}

void ExpectSameElements(const std::string& page, const std::string& plain) {
  for (const char* part : {"<script", "</script", "<!--", "<b>", "</table"}) {
    EXPECT_EQ(CountParts(page, part), CountParts(plain, part)) << part;
  }
}

}  // namespace lockstep
