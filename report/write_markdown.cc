// Markdown as GitHub reads it.
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "report/document.h"
#include "report/write.h"

namespace lockstep::report {
namespace {

std::string Paragraph(absl::string_view text) {
  return text.empty() ? "" : absl::StrCat(MarkdownText(text), "\n\n");
}

std::string Items(const std::vector<std::string>& texts) {
  std::string items;
  for (const std::string& text : texts) {
    absl::StrAppend(&items, "- ", MarkdownText(text), "\n");
  }
  return items.empty() ? "" : items + "\n";
}

std::string TableText(const Table& table) {
  if (table.columns.empty()) return "";
  std::string titles = "|", rule = "|";
  for (const Column& column : table.columns) {
    absl::StrAppend(&titles, " ", MarkdownText(column.title, true), " |");
    absl::StrAppend(&rule, column.left ? " --- |" : " ---: |");
  }
  std::string text = absl::StrCat(titles, "\n", rule, "\n");
  for (const std::vector<Cell>& row : table.rows) {
    absl::StrAppend(&text, "|");
    for (size_t i = 0; i < table.columns.size(); ++i) {
      const std::string cell =
          i < row.size() ? MarkdownText(row[i].text, true) : "";
      absl::StrAppend(&text, " ", cell, cell.empty() ? "|" : " |");
    }
    absl::StrAppend(&text, "\n");
  }
  return text + "\n";
}

std::string SectionText(const Section& section) {
  return absl::StrCat(
      section.title.empty()
          ? ""
          : absl::StrCat("## ", MarkdownText(section.title), "\n\n"),
      Paragraph(section.about), TableText(section.table), Items(section.notes),
      Paragraph(section.conclusion));
}

std::string BarsText(const Document& document) {
  std::vector<std::string> lines;
  for (const Bar& bar : document.bars) {
    lines.push_back(
        absl::StrCat(bar.what, ", ", bar.Goal(), ": ", bar.Outcome()));
  }
  if (!document.no_bars.empty()) {
    lines.push_back(absl::StrCat("no bar: ", document.no_bars));
  }
  return lines.empty() ? "" : absl::StrCat("## Bars\n\n", Items(lines));
}

}  // namespace

std::string MarkdownPage(const Document& document) {
  const Origin& origin = document.origin;
  std::string text =
      absl::StrCat("# ", MarkdownText(document.title), "\n\n",
                   Paragraph(document.about), Items(document.notes));
  for (const Section& section : document.sections) {
    absl::StrAppend(&text, SectionText(section));
  }
  absl::StrAppend(&text, Items(document.remarks), BarsText(document));
  for (const Term& term : document.terms) {
    absl::StrAppend(&text, "- **", MarkdownText(term.name),
                    "**: ", MarkdownText(term.text), "\n");
  }
  absl::StrAppend(&text, document.terms.empty() ? "" : "\n",
                  MarkdownText(MachineText(origin.machine)), "; ",
                  MarkdownCode(origin.created), "\n\n",
                  MarkdownCode(origin.command));
  if (!origin.commit.empty()) {
    absl::StrAppend(&text, " at commit ", MarkdownText(origin.commit));
  }
  return text + "\n";
}

}  // namespace lockstep::report
