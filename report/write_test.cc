// Tests every form on one small report that has all parts.
#include "report/write.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "report/chart_js.h"
#include "report/document.h"
#include "report/write_html.h"

namespace lockstep::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Returns how often `part` occurs in `text`.
int CountParts(absl::string_view text, absl::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != absl::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

// Returns a string in the page that would load something, or "" if there is
// none.
std::string FindLoader(absl::string_view page) {
  for (const char* loader :
       {"http:", "https:", "src=", "href=", "<link", "<img", "<iframe", "url(",
        "@import", "fetch(", "XMLHttpRequest", "import "}) {
    if (absl::StrContains(page, loader)) return loader;
  }
  return "";
}

// Returns the name of an element that the page opens and closes a different
// number of times, or "" if there is none. A text search suffices for our own
// pages.
std::string FindUnbalancedElement(absl::string_view page) {
  for (const char* name : {"html", "head", "body", "style", "script", "main",
                           "section", "dl", "table", "noscript", "p"}) {
    const int open = CountParts(page, absl::StrCat("<", name, ">")) +
                     CountParts(page, absl::StrCat("<", name, " "));
    if (open != CountParts(page, absl::StrCat("</", name, ">"))) return name;
  }
  return "";
}

// Expects a complete page that loads nothing and closes its elements. Expects
// Chart.js and its charts if `charts` is true, and neither otherwise.
void ExpectWholePage(const std::string& page, bool charts = true) {
  // Chart.js itself is left out, since its comments name its home page.
  const std::string own =
      absl::StrReplaceAll(page, {{ChartJs(), "(Chart.js)"}});
  EXPECT_EQ(CountParts(own, "(Chart.js)"), charts ? 1 : 0);
  EXPECT_TRUE(absl::StartsWith(own, "<!DOCTYPE html>"));
  EXPECT_TRUE(absl::EndsWith(own, "</html>\n"));
  EXPECT_EQ(FindLoader(own), "");
  EXPECT_EQ(FindUnbalancedElement(own), "");
  for (const char* part : {"<main>", "<section>", "<table "}) {
    EXPECT_THAT(own, HasSubstr(part));
  }
  for (const char* part : {"<noscript>", "const charts = "}) {
    EXPECT_EQ(CountParts(own, part), charts ? 1 : 0) << part;
  }
}

// Expects as many elements and comments as in `plain`, the page of a report
// without hostile strings.
void ExpectSameElements(const std::string& page, const std::string& plain) {
  for (const char* part : {"<script", "</script", "<!--", "<b>", "</table"}) {
    EXPECT_EQ(CountParts(page, part), CountParts(plain, part)) << part;
  }
}

Document Example() {
  return {
      .name = "lockstep.example",
      .schema_version = 3,
      .title = "Lockstep example report",
      .about = "things, 2 of them",
      .origin = {.machine = {.cpu = "Example 9000",
                             .cores = 2,
                             .memory_bytes = int64_t{16} << 30,
                             .system = "Linux 6.1"},
                 .command = "example --things=2",
                 .commit = "0123456789abcdef0123456789abcdef01234567",
                 .created = "2024-05-31T16:20:00Z"},
      .notes = {"Something to know."},
      .sections =
          {{.title = "First",
            .about = "things by size",
            .table = {.columns = {{.title = "size", .width = 6},
                                  {.title = "what", .left = true},
                                  {.title = "ms"},
                                  {.title = "right"}},
                      .rows = {{"1", "one", "12.5", {"yes", Tone::kGood}},
                               {"", "another", "3", {"no", Tone::kBad}},
                               {"2", "a note on the whole row"}}},
            .notes = {"* a star"},
            .conclusion = "It comes to nothing.",
            .charts = {{.title = "Times",
                        .x_title = "size",
                        .y_title = "ms",
                        .places = {"1", "2"},
                        .positions = {1, 2},
                        .decimals = 2,
                        .unit = " ms",
                        .series = {{.name = "one",
                                    .kind = Series::Kind::kLine,
                                    .values = {12.5, std::nullopt},
                                    .ranges = {{12, 13}, {0, 1}}},
                                   {.name = "missing",
                                    .values = {std::nullopt, std::nullopt}}}}}},
           {.table = {.columns = {{.title = "n"}}, .rows = {{"7"}}}}},
      .terms = {{"size", "how large a thing is."},
                {"ms", "how long it takes."}},
      .remarks = {"Others: not available: they were not built"},
      .bars = {{.what = "the first thing",
                .needed = 2,
                .unit = "times as fast",
                .value = 2.5},
               {.what = "the second thing", .needed = 3, .value = 1}},
      .facts = {{"Things", "2"}},
      .method = {"Things are measured one after the other."},
      .data = {{"settings", Value{{"things", 2}}}}};
}

TEST(TerminalTextTest, LooksLikeThis) {
  EXPECT_EQ(TerminalText(Example()), R"(things, 2 of them
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
example --things=2
Something to know.

First: things by size
  size what      ms right
     1 one     12.5   yes
       another    3    no
     2 a note on the whole row
* a star
It comes to nothing.

n
7

size: how large a thing is. ms: how long it takes.
Others: not available: they were not built

bar              goal                     measured
the first thing  at least 2 times as fast 2.50: met
the second thing at least 3               1.00: NOT met
)");
}

TEST(TerminalTextTest, LeavesOutWhatThereIsNot) {
  Document document = {.origin = {.created = "now"},
                       .no_bars = "there are none"};
  EXPECT_EQ(TerminalText(document),
            ", 1 core, 0 GiB, ; now\n\n\n"
            "no bar: there are none.\n");
}

TEST(TerminalTextTest, TakesACharacterForAColumn) {
  Document document;
  document.sections = {{.table = {.columns = {{.title = "m"}, {.title = "n"}},
                                  .rows = {{"\xc3\xa9\xc3\xa9", "1"}}}}};
  EXPECT_THAT(TerminalText(document), HasSubstr(" m n\n\xc3\xa9\xc3\xa9 1\n"));
}

// Returns the example as a judge writes it: a verdict, a finding and its
// evidence.
Document Judged() {
  Document document = Example();
  document.verdict = "1 thing fails.";
  document.verdict_tone = Tone::kBad;
  document.sections = {
      {.title = "First",
       .points = {{"what", "It is broken."}, {"fix", "Mend it."}},
       .output = {"<one>", "```", std::string(120, 'x')}}};
  return document;
}

TEST(VerdictTest, StandsFirstInEveryForm) {
  const Document document = Judged();
  EXPECT_THAT(TerminalText(document),
              StartsWith("1 thing fails.\nthings, 2 of them\n"));
  EXPECT_THAT(MarkdownPage(document),
              StartsWith("# Lockstep example report\n\n**1 thing fails.**\n\n"
                         "things, 2 of them\n"));
  EXPECT_THAT(HtmlPage(document),
              HasSubstr("<h1>Lockstep example report</h1>\n"
                        "<p class=\"verdict bad\">1 thing fails.</p>\n"));
  EXPECT_THAT(HtmlPage(Example()), Not(HasSubstr("class=\"verdict")));
}

TEST(PointsTest, AreNamedAndTheOutputIsShownByLine) {
  const Document document = Judged();
  const std::string long_line(120, 'x');
  EXPECT_THAT(TerminalText(document),
              HasSubstr("\nFirst\nwhat: It is broken.\nfix: Mend it.\n"
                        "  <one>\n  ```\n  " +
                        long_line + "\n"));
  EXPECT_THAT(MarkdownPage(document),
              HasSubstr("- **what**: It is broken.\n- **fix**: Mend it.\n\n"
                        "````\n<one>\n```\n" +
                        long_line + "\n````\n"));
  const std::string page = HtmlPage(document);
  ExpectWholePage(page, /*charts=*/false);
  EXPECT_THAT(page, HasSubstr("<dt>what</dt>\n<dd>It is broken.</dd>\n"));
  EXPECT_THAT(page, HasSubstr("<pre>&lt;one&gt;\n```\n" + long_line + "\n"));
}

// The text of a cell is wrapped, so that its table fits the page.
TEST(HtmlPageTest, BreaksTheLinesOfTextColumnsAlone) {
  const Document document = {
      .sections = {{.table = {.columns = {{.title = "says", .left = true},
                                          {.title = "n"}},
                              .rows = {{{"A sentence.", Tone::kGood}, "7"}}}}}};
  const std::string page = HtmlPage(document);
  EXPECT_THAT(page, HasSubstr("<td class=\"good left\">A sentence.</td>"));
  EXPECT_THAT(page, HasSubstr("<td>7</td>"));
  EXPECT_THAT(page, HasSubstr("\n.left { white-space: normal;"));
  EXPECT_THAT(page, HasSubstr("vertical-align: top; white-space: nowrap; }"));
}

TEST(GrowingReportTest, PrintsWhatIsNew) {
  GrowingReport shown;
  Document document = {.origin = {.created = "now"}};
  testing::internal::CaptureStdout();
  shown.Show(document);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), TerminalText(document));
  document.sections = {{.table = {.columns = {{.title = "n", .width = 3}}}}};
  document.sections[0].table.rows.push_back({"7"});
  testing::internal::CaptureStdout();
  shown.Show(document);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "\n  n\n  7\n");
  document.sections[0].table.rows.push_back({"8"});
  testing::internal::CaptureStdout();
  shown.Show(document);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "  8\n");
}

nlohmann::ordered_json Parse(const std::string& text) {
  return nlohmann::ordered_json::parse(text, nullptr,
                                       /*allow_exceptions=*/false);
}

std::vector<std::string> Keys(const nlohmann::ordered_json& json) {
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  return keys;
}

TEST(JsonTextTest, BeginsWithTheOrigin) {
  const nlohmann::ordered_json json = Parse(JsonText(Example()));
  EXPECT_THAT(Keys(json),
              ElementsAre("report", "schema_version", "created", "command",
                          "commit", "machine", "settings", "bars"));
  EXPECT_EQ(json["report"], "lockstep.example");
  EXPECT_EQ(json["schema_version"], 3);
  EXPECT_EQ(json["created"], "2024-05-31T16:20:00Z");
  EXPECT_EQ(json["command"], "example --things=2");
  EXPECT_EQ(json["commit"], "0123456789abcdef0123456789abcdef01234567");
  EXPECT_THAT(Keys(json["machine"]), ElementsAre("cpu", "cores", "memory_bytes",
                                                 "system", "others_share"));
  EXPECT_EQ(json["machine"]["cpu"], "Example 9000");
  EXPECT_EQ(json["machine"]["cores"], 2);
  EXPECT_EQ(json["machine"]["memory_bytes"], int64_t{16} << 30);
  EXPECT_EQ(json["settings"]["things"], 2);
  EXPECT_THAT(Keys(json["bars"][0]),
              ElementsAre("what", "at_least", "unit", "value", "met"));
  EXPECT_EQ(json["bars"][0]["value"], 2.5);
  EXPECT_EQ(json["bars"][1]["met"], false);
}

TEST(JsonTextTest, NamesTheHostsOfARunOnSeveral) {
  Document document = Example();
  document.origin.hosts = {{.name = "a", .ranks = {0, 2}, .cores = 2},
                           {.name = "b", .ranks = {1}}};
  document.origin.others_share = 0.25;
  const nlohmann::ordered_json json = Parse(JsonText(document));
  EXPECT_EQ(json["machine"]["others_share"], 0.25);
  EXPECT_EQ(json["hosts"].dump(), R"([{"name":"a","ranks":[0,2],"cores":2},)"
                                  R"({"name":"b","ranks":[1],"cores":1}])");
  EXPECT_EQ(HostsText(document.origin.hosts),
            "a (ranks 0, 2 on 2 cores), b (rank 1 on 1 core)");
}

TEST(BarTest, AValueThatIsNotJudgedIsNeitherMetNorMissed) {
  Document document = Example();
  for (Bar& bar : document.bars) bar.judged = false;
  EXPECT_EQ(document.bars[0].Outcome(), "2.50: not judged");
  const nlohmann::ordered_json json = Parse(JsonText(document));
  EXPECT_EQ(json["bars"][0]["value"], 2.5);
  EXPECT_TRUE(json["bars"][0]["met"].is_null());
  EXPECT_EQ(BarsTable(document.bars).rows[1][2].tone, Tone::kPlain);
}

TEST(JsonTextTest, SaysOfBarsWhatWasNotMeasuredAndWhyThereAreNone) {
  Document document = {.bars = {{.what = "a thing", .at_most = true}},
                       .no_bars = "no other"};
  const nlohmann::ordered_json json = Parse(JsonText(document));
  EXPECT_EQ(json["bars"][0]["at_most"], 0);
  EXPECT_TRUE(json["bars"][0]["value"].is_null());
  EXPECT_TRUE(json["bars"][0]["met"].is_null());
  EXPECT_EQ(json["no_bar"], "no other");
  EXPECT_FALSE(json["bars"][0].contains("decimals"));
  document.bars[0].decimals = 1;
  EXPECT_EQ(Parse(JsonText(document))["bars"][0]["decimals"], 1);
}

TEST(JsonTextTest, KeepsEveryValueAsItIs) {
  Document document = {.data = {{"third", 1.0 / 3},
                                {"whole", 20.0},
                                {"negative", -7},
                                {"large", std::numeric_limits<uint64_t>::max()},
                                {"none", Value()},
                                {"true", true},
                                {"empty", Value::Array()},
                                {"nothing", Value::Object()},
                                {"list", std::vector<double>{0.5, 1e300}}}};
  const nlohmann::ordered_json json = Parse(JsonText(document));
  EXPECT_TRUE(json["commit"].is_null());
  EXPECT_EQ(json["third"].get<double>(), 1.0 / 3);
  EXPECT_TRUE(json["whole"].is_number_float());
  EXPECT_EQ(json["negative"], -7);
  EXPECT_EQ(json["large"], std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE(json["none"].is_null());
  EXPECT_EQ(json["true"], true);
  EXPECT_EQ(json["empty"], nlohmann::ordered_json::array());
  EXPECT_EQ(json["nothing"], nlohmann::ordered_json::object());
  EXPECT_EQ(json["list"][1], 1e300);
}

TEST(JsonTextTest, SurvivesBytesThatAreNotText) {
  Document document = {.origin = {.command = "\xff\""}};
  EXPECT_EQ(Parse(JsonText(document))["command"], "\uFFFD\"");
}

TEST(MarkdownPageTest, LooksLikeThis) {
  EXPECT_EQ(MarkdownPage(Example()), R"(# Lockstep example report

things, 2 of them

- Something to know.

## First

things by size

| size | what | ms | right |
| ---: | --- | ---: | ---: |
| 1 | one | 12.5 | yes |
| | another | 3 | no |
| 2 | a note on the whole row | | |

- `* a star`

It comes to nothing.

| n |
| ---: |
| 7 |

- Others: not available: they were not built

## Bars

| bar | goal | measured |
| --- | --- | --- |
| the first thing | at least 2 times as fast | 2.50: met |
| the second thing | at least 3 | 1.00: NOT met |

- **size**: how large a thing is.
- **ms**: how long it takes.

Example 9000, 2 cores, 16 GiB, Linux 6.1; `2024-05-31T16:20:00Z`

`example --things=2` at commit 0123456789abcdef0123456789abcdef01234567
)");
}

TEST(HtmlPageTest, IsAWholePageThatLoadsNothing) {
  const std::string page = HtmlPage(Example());
  ExpectWholePage(page);
  for (const char* part :
       {"<title>Lockstep example report</title>",
        "<h1>Lockstep example report</h1>", "<p>Something to know.</p>",
        "<h2>First</h2>", "<p class=\"definition\">things by size</p>",
        "<p class=\"limits\">It comes to nothing.</p>", "<h3>Times</h3>",
        "<td>12.5</td>", "<td class=\"good\">yes</td>",
        "<td class=\"bad\">no</td>",
        "<td class=\"left\" colspan=\"3\">a note on the whole row</td>",
        "<p class=\"note\">* a star</p>",
        "<td class=\"good left\">2.50: met</td>", "<dt>size</dt>",
        "<dd>how large a thing is.</dd>",
        "<th scope=\"row\">Things</th><td>2</td>",
        "<code>example --things=2</code>",
        "<p>Things are measured one after the other.</p>"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
}

TEST(HtmlPageTest, HoldsTheChartsForItsScript) {
  const std::string page = HtmlPage(Example());
  const std::string begin = "const charts = ";
  const size_t start = page.find(begin) + begin.size();
  const nlohmann::ordered_json charts =
      Parse(page.substr(start, page.find(";\n</script>", start) - start));
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_EQ(CountParts(page, "<canvas data-chart=\"0\""), 1);
  EXPECT_EQ(charts[0]["x_title"], "size");
  EXPECT_EQ(charts[0]["positions"], nlohmann::ordered_json({1.0, 2.0}));
  ASSERT_EQ(charts[0]["series"].size(), 1u);
  const auto& series = charts[0]["series"][0];
  EXPECT_EQ(series["kind"], "line");
  EXPECT_EQ(series["values"][0], 12.5);
  EXPECT_TRUE(series["values"][1].is_null());
  EXPECT_EQ(series["ranges"][1][1], 1.0);
}

TEST(HtmlPageTest, HoldsTextOfChartsAsAsciiWithoutLessThan) {
  Document document = Example();
  document.sections[0].charts[0].unit = "a<b \u00e9 \u2029";
  EXPECT_THAT(HtmlPage(document),
              HasSubstr(R"("unit":"a\u003cb \u00e9 \u2029")"));
}

TEST(HtmlPageTest, LeavesChartJsOutOfAPageWithoutCharts) {
  Document document = Example();
  document.sections[0].charts.clear();
  ExpectWholePage(HtmlPage(document), /*charts=*/false);
}

// Returns the example with `text` in all places where a report may show text of
// others.
Document WithForeignText(const std::string& text) {
  Document document = Example();
  document.origin = {.machine = {.cpu = text, .system = text},
                     .command = text,
                     .commit = text,
                     .created = text};
  Section& section = document.sections[0];
  for (std::string* place :
       {&document.about, &document.notes[0], &document.remarks[0],
        &document.terms[0].text, &document.facts[0].text,
        &document.bars[0].what, &section.title, &section.table.rows[0][1].text,
        &document.verdict, &section.points.emplace_back().text,
        &section.output.emplace_back(), &section.notes[0],
        &section.charts[0].title, &section.charts[0].series[0].name}) {
    *place = text;
  }
  return document;
}

TEST(HtmlPageTest, KeepsHostileStringsInsideTheirElement) {
  const std::string page = HtmlPage(WithForeignText(
      "</script><script>alert(1)</script><!-- <b> \" ' \\ \n \u2028"));
  ExpectWholePage(page);
  ExpectSameElements(page, HtmlPage(WithForeignText("plain")));
  Document document = Example();
  document.origin.machine.cpu = "Example\xff";  // Not UTF-8.
  EXPECT_THAT(HtmlPage(document), HasSubstr("Example\uFFFD"));
}

TEST(MarkdownPageTest, ShowsTextAsItIs) {
  std::string markdown = MarkdownPage(
      WithForeignText("<b>|*x*`y`\n# z[1](2)\x07 &lt;~~a~~ _e_ @name #1"));
  const std::string shown = "*x*`y` # z[1](2)\uFFFD &lt;~~a~~ _e_ @name #1 ``";
  EXPECT_THAT(markdown, HasSubstr("- `` <b>|" + shown));
  EXPECT_THAT(markdown, HasSubstr("| `` <b>\\|" + shown + " |"));
  EXPECT_THAT(markdown, Not(HasSubstr("\n# z")));
  const size_t fence = markdown.find("```\n");
  ASSERT_NE(fence, std::string::npos);
  markdown.erase(fence, markdown.rfind("\n```\n") + 5 - fence);
  // The text does not appear outside of code.
  for (size_t begin = markdown.find("`` "); begin != std::string::npos;
       begin = markdown.find("`` ")) {
    const size_t end = markdown.find(" ``", begin + 3);
    ASSERT_NE(end, std::string::npos);
    markdown.erase(begin, end + 3 - begin);
  }
  EXPECT_THAT(markdown, Not(HasSubstr("<b>")));
}

TEST(ChartJsTest, IsWhole) {
  ASSERT_GT(ChartJs().size(), 100000u);
  EXPECT_THAT(std::string(ChartJs().substr(0, 200)), HasSubstr("Chart.js v"));
  // Either string would end the element or begin an HTML comment inside it.
  EXPECT_FALSE(absl::StrContains(absl::AsciiStrToLower(ChartJs()), "</script"));
  EXPECT_FALSE(absl::StrContains(ChartJs(), "<!--"));
}

TEST(PageChecksTest, FindElementsThatStayOpen) {
  EXPECT_TRUE(FindUnbalancedElement("<html><p id=\"a\">b</p></html>").empty());
  EXPECT_EQ(FindUnbalancedElement("<html><p id=\"a\">b</html>"), "p");
  EXPECT_EQ(FindUnbalancedElement("<html></p></html>"), "p");
  EXPECT_EQ(FindUnbalancedElement("<section><table></section>"), "table");
}

TEST(PageChecksTest, FindWhatALoadingPageHas) {
  EXPECT_EQ(FindLoader("<p>all here</p>"), "");
  EXPECT_EQ(FindLoader("<script src=\"chart.js\">"), "src=");
  EXPECT_EQ(FindLoader("@import 'other.css'"), "@import");
}

}  // namespace
}  // namespace lockstep::report
