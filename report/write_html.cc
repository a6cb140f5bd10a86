// The tables of the page are markup; its charts are JSON that charts.js draws.
#include "report/write_html.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "report/chart_js.h"
#include "report/charts_js.h"
#include "report/document.h"
#include "report/report_page_css.h"

namespace lockstep::report {
namespace {

using Json = nlohmann::ordered_json;

const char* Name(Series::Kind kind) {
  constexpr const char* kNames[] = {"bars", "line", "ideal", "level"};
  return kNames[static_cast<size_t>(kind)];
}

Json SeriesJson(const Series& series) {
  Json values = Json::array();
  for (const std::optional<double>& value : series.values) {
    values.push_back(value.has_value() ? Json(*value) : Json());
  }
  return {{"name", series.name},    {"kind", Name(series.kind)},
          {"color", series.color},  {"stack", series.stack},
          {"values", values},       {"ranges", series.ranges},
          {"labels", series.labels}};
}

// Returns whether the series has any value. The series of a missing peer has
// none.
bool HasValue(const Series& series) {
  return std::any_of(
      series.values.begin(), series.values.end(),
      [](const std::optional<double>& value) { return value.has_value(); });
}

Json ChartJson(const Chart& chart) {
  Json series = Json::array();
  for (const Series& each : chart.series) {
    if (HasValue(each)) series.push_back(SeriesJson(each));
  }
  return {{"x_title", chart.x_title}, {"y_title", chart.y_title},
          {"places", chart.places},   {"positions", chart.positions},
          {"percent", chart.percent}, {"decimals", chart.decimals},
          {"unit", chart.unit},       {"series", series}};
}

std::string Element(absl::string_view name, absl::string_view attributes,
                    absl::string_view text) {
  return absl::StrCat("<", name, attributes.empty() ? "" : " ", attributes, ">",
                      HtmlText(text), "</", name, ">");
}

std::string Paragraph(absl::string_view style, absl::string_view text) {
  if (text.empty()) return "";
  const std::string attribute =
      style.empty() ? "" : absl::StrCat("class=\"", style, "\"");
  return Element("p", attribute, text) + "\n";
}

std::string Paragraphs(absl::string_view style,
                       const std::vector<std::string>& texts) {
  std::string html;
  for (const std::string& text : texts) {
    absl::StrAppend(&html, Paragraph(style, text));
  }
  return html;
}

const char* Name(Tone tone) {
  constexpr const char* kNames[] = {"", "good", "bad"};
  return kNames[static_cast<size_t>(tone)];
}

// Returns the class attribute of a cell, or "" if it needs none.
std::string StyleOf(const Cell& cell, bool left) {
  const char* const tone = Name(cell.tone);
  const char* const side = left ? "left" : "";
  if (*tone == '\0' && *side == '\0') return "";
  return absl::StrCat("class=\"", tone,
                      *tone != '\0' && *side != '\0' ? " " : "", side, "\"");
}

std::string RowHtml(const Table& table, const std::vector<Cell>& row) {
  std::string html = "<tr>";
  for (size_t i = 0; i < row.size(); ++i) {
    const bool spans = i + 1 == row.size() && row.size() < table.columns.size();
    std::string attributes = StyleOf(row[i], spans || table.columns[i].left);
    if (spans) {
      absl::StrAppend(&attributes, attributes.empty() ? "" : " ", "colspan=\"",
                      table.columns.size() - i, "\"");
    }
    absl::StrAppend(&html, Element("td", attributes, row[i].text));
  }
  return html + "</tr>\n";
}

std::string TableHtml(const Table& table) {
  if (table.columns.empty()) return "";
  std::string html =
      "<div class=\"scroll\"><table class=\"numbers\">\n<thead><tr>";
  for (const Column& column : table.columns) {
    absl::StrAppend(&html, Element("th",
                                   column.left ? "scope=\"col\" class=\"left\""
                                               : "scope=\"col\"",
                                   column.title));
  }
  absl::StrAppend(&html, "</tr></thead>\n<tbody>\n");
  for (const std::vector<Cell>& row : table.rows) {
    absl::StrAppend(&html, RowHtml(table, row));
  }
  return html + "</tbody>\n</table></div>\n";
}

// Returns the canvases of the section's charts and adds the charts to `charts`.
std::string ChartsHtml(const Section& section, Json& charts) {
  std::string html;
  for (const Chart& chart : section.charts) {
    absl::StrAppend(
        &html, "<div class=\"chart\">", Element("h3", "", chart.title),
        "<div><canvas data-chart=\"", charts.size(),
        "\" role=\"img\" aria-label=\"",
        HtmlText(absl::StrCat(section.title, section.title.empty() ? "" : ": ",
                              chart.title)),
        "; the table has the numbers\"></canvas></div></div>\n");
    charts.push_back(ChartJson(chart));
  }
  return html.empty()
             ? ""
             : absl::StrCat("<div class=\"charts\">\n", html, "</div>\n");
}

std::string SectionHtml(absl::string_view title, absl::string_view content) {
  return absl::StrCat("<section>\n",
                      title.empty() ? "" : Element("h2", "", title) + "\n",
                      content, "</section>\n");
}

std::string BarsHtml(const Document& document) {
  if (document.bars.empty() && document.no_bars.empty()) return "";
  return SectionHtml(
      "Bars",
      document.bars.empty()
          ? Paragraph("",
                      absl::StrCat("Not stated here: ", document.no_bars, "."))
          : TableHtml(BarsTable(document.bars)));
}

std::string ListHtml(absl::string_view style, const std::vector<Term>& terms) {
  if (terms.empty()) return "";
  std::string html = absl::StrCat("<dl class=\"", style, "\">\n");
  for (const Term& term : terms) {
    absl::StrAppend(&html, Element("dt", "", term.name), "\n",
                    Element("dd", "", term.text), "\n");
  }
  return html + "</dl>\n";
}

std::string TermsHtml(const Document& document) {
  const std::string list = ListHtml("terms", document.terms);
  return list.empty() ? "" : SectionHtml("How to read it", list);
}

std::string OutputHtml(const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string html = "<pre>";
  for (const std::string& line : lines) {
    absl::StrAppend(&html, HtmlText(line), "\n");
  }
  return html + "</pre>\n";
}

std::string VerdictHtml(const Document& document) {
  if (document.verdict.empty()) return "";
  const char* const tone = Name(document.verdict_tone);
  return Paragraph(absl::StrCat("verdict", *tone == '\0' ? "" : " ", tone),
                   document.verdict);
}

std::string FactsHtml(const Document& document) {
  const Origin& origin = document.origin;
  std::vector<Term> facts = {{"Machine", MachineText(origin.machine)}};
  facts.insert(facts.end(), document.facts.begin(), document.facts.end());
  facts.push_back({"Date", origin.created});
  facts.push_back(
      {"Commit", origin.commit.empty() ? "unknown" : origin.commit});
  std::string html = "<table class=\"facts\"><tbody>\n";
  for (const Term& fact : facts) {
    absl::StrAppend(&html, "<tr>", Element("th", "scope=\"row\"", fact.name),
                    Element("td", "", fact.text), "</tr>\n");
  }
  absl::StrAppend(&html, "<tr>", Element("th", "scope=\"row\"", "Command"),
                  "<td>", Element("code", "", origin.command),
                  "</td></tr>\n</tbody></table>\n");
  return SectionHtml("How it was measured",
                     absl::StrCat(html, Paragraphs("note", document.remarks),
                                  Paragraphs("", document.method)));
}

// Returns a JavaScript expression that is safe inside a <script> element
// whatever its strings contain. The expression is ASCII and has no '<', so no
// string can end the element or begin a comment. Bytes that are not UTF-8
// become U+FFFD.
std::string JsonForScript(const Json& json) {
  return absl::StrReplaceAll(
      json.dump(-1, ' ', true, Json::error_handler_t::replace),
      {{"<", "\\u003c"}});
}

std::string ScriptsHtml(const Json& charts) {
  if (charts.empty()) return "";
  return absl::StrCat("<script>\n", ChartJs(), "\n</script>\n<script>\n",
                      "const charts = ", JsonForScript(charts),
                      ";\n</script>\n<script>\n", ChartsJs(), "</script>\n");
}

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
)";

constexpr char kNoScript[] =
    "<noscript><p>The script inside this page draws its charts; the tables "
    "have their numbers.</p></noscript>\n";

}  // namespace

std::string HtmlPage(const Document& document) {
  const Origin& origin = document.origin;
  Json charts = Json::array();
  std::string sections;
  for (const Section& section : document.sections) {
    absl::StrAppend(
        &sections,
        SectionHtml(
            section.title,
            absl::StrCat(Paragraph("definition", section.about),
                         ListHtml("points", section.points),
                         OutputHtml(section.output),
                         Paragraph("limits", section.conclusion),
                         ChartsHtml(section, charts), TableHtml(section.table),
                         Paragraphs("note", section.notes))));
  }
  const std::string about = absl::StrCat(
      document.about, "; ", MachineText(origin.machine), "; ", origin.created);
  return absl::StrCat(
      kHead, Element("title", "", document.title), "\n<style>\n",
      ReportPageCss(), "</style>\n</head>\n<body>\n<main>\n<header>\n",
      Element("h1", "", document.title), "\n", VerdictHtml(document),
      Paragraph("", about), Paragraphs("", document.notes), "</header>\n",
      charts.empty() ? "" : kNoScript, sections, BarsHtml(document),
      TermsHtml(document), FactsHtml(document), "</main>\n",
      ScriptsHtml(charts), "</body>\n</html>\n");
}

}  // namespace lockstep::report
