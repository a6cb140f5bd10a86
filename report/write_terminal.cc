// Plain text: what stands above the tables, the tables, what stands below.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "report/write.h"

namespace lockstep {

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void ShowProgress(const std::string& what) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s", what.c_str());
}

namespace report {
namespace {

// Characters, each of which is taken for one column wide.
size_t Width(absl::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::vector<size_t> WidthsOf(const Table& table) {
  std::vector<size_t> widths;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const Column& column = table.columns[i];
    size_t width = std::max(Width(column.title),
                            static_cast<size_t>(std::max(column.width, 0)));
    for (const std::vector<Cell>& row : table.rows) {
      const bool spans =
          i + 1 == row.size() && row.size() < table.columns.size();
      if (column.width > 0 || i >= row.size() || spans) continue;
      width = std::max(width, Width(row[i].text));
    }
    widths.push_back(width);
  }
  return widths;
}

std::string Line(const Table& table, const std::vector<size_t>& widths,
                 const std::vector<Cell>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string& text = cells[i].text;
    const size_t used = Width(text);
    const bool last = i + 1 == cells.size();
    const bool left = table.columns[i].left || (last && i + 1 < widths.size());
    const std::string pad(widths[i] > used ? widths[i] - used : 0, ' ');
    absl::StrAppend(&line, i > 0 ? " " : "", left ? "" : pad, text,
                    left && !last ? pad : "");
  }
  absl::StripTrailingAsciiWhitespace(&line);
  return line + "\n";
}

std::string TableText(const Table& table) {
  if (table.columns.empty()) return "";
  const std::vector<size_t> widths = WidthsOf(table);
  std::vector<Cell> titles;
  for (const Column& column : table.columns) titles.emplace_back(column.title);
  std::string text = Line(table, widths, titles);
  for (const std::vector<Cell>& row : table.rows) {
    absl::StrAppend(&text, Line(table, widths, row));
  }
  return text;
}

std::string Wrapped(absl::string_view text) {
  return text.empty() ? "" : WrapText(text, kTableColumns);
}

std::string Wrapped(const std::vector<std::string>& paragraphs) {
  std::string text;
  for (const std::string& paragraph : paragraphs) {
    absl::StrAppend(&text, Wrapped(paragraph));
  }
  return text;
}

std::string SectionText(const Section& section) {
  return absl::StrCat(
      "\n",
      Wrapped(absl::StrCat(
          section.title,
          section.title.empty() || section.about.empty() ? "" : ": ",
          section.about)),
      TableText(section.table), Wrapped(section.notes),
      Wrapped(section.conclusion));
}

std::string BarsText(const Document& document) {
  std::string text;
  for (const Bar& bar : document.bars) {
    absl::StrAppend(&text, "bar: ", bar.what, ", ", bar.Goal(), ": ",
                    bar.Outcome(), "\n");
  }
  if (!document.no_bars.empty()) {
    absl::StrAppend(&text, "no bar: ", document.no_bars, ".\n");
  }
  return text;
}

}  // namespace

std::string TermsText(const std::vector<Term>& terms) {
  std::string text;
  for (const Term& term : terms) {
    absl::StrAppend(&text, text.empty() ? "" : " ", term.name, ": ", term.text);
  }
  return Wrapped(text);
}

std::string TerminalText(const Document& document) {
  const Origin& origin = document.origin;
  std::string text = absl::StrCat(
      Wrapped(document.about),
      Wrapped(absl::StrCat(MachineText(origin.machine), "; ", origin.created)),
      origin.commit.empty() ? "" : absl::StrCat("commit ", origin.commit, "\n"),
      origin.command, "\n", Wrapped(document.notes));
  for (const Section& section : document.sections) {
    absl::StrAppend(&text, SectionText(section));
  }
  const std::string below =
      absl::StrCat(TermsText(document.terms), Wrapped(document.remarks));
  const std::string bars = BarsText(document);
  return absl::StrCat(text, below.empty() ? "" : "\n", below,
                      bars.empty() ? "" : "\n", bars);
}

void GrowingReport::Show(const Document& document) {
  std::string text = TerminalText(document);
  const auto [more, end] =
      std::mismatch(text.begin(), text.end(), shown_.begin(), shown_.end());
  Print(std::string(more, text.end()));
  shown_ = std::move(text);
}

}  // namespace report
}  // namespace lockstep
