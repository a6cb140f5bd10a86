// Writes the terminal's text (the part above the tables, the tables, and the
// part below them), the same content as Markdown, the JSON, and the files of a
// report.
#include "report/write.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "report/document.h"
#include "report/write_html.h"

namespace lockstep {

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void ShowProgress(const std::string& what) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s", what.c_str());
}

// The files.
namespace {

using std::filesystem::file_type;

// Returns file_type::none if the system does not accept the path, for example
// because its name is too long.
file_type TypeOf(const std::filesystem::path& file) {
  std::error_code error;  // Set also if the file does not exist yet.
  return std::filesystem::status(file, error).type();
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(path, text));
  Print(absl::StrCat("Wrote ", path, "\n"));
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeOutputFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "--output_dir: cannot write to ", folder, ": ", error.message()));
}

absl::Status CheckJsonPath(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const std::filesystem::path file = ResolveUserPath(path);
  const std::string folder =
      file.has_parent_path() ? file.parent_path().string() : ".";
  // ReplaceFile keeps the incomplete file at this path.
  const std::string partial = absl::StrCat(file.string(), ".partial");
  const file_type type = TypeOf(file);
  if (access(folder.c_str(), W_OK | X_OK) == 0 && type != file_type::none &&
      type != file_type::directory && TypeOf(partial) != file_type::none) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--json: cannot write to ", file.string()));
}

absl::Status WriteJsonFile(const std::string& path, const std::string& json) {
  return path.empty() ? absl::OkStatus()
                      : WriteFile(ResolveUserPath(path), json);
}

absl::Status WriteReport(const std::string& folder, const std::string& name,
                         const report::Document& document,
                         const report::Document* page) {
  const std::string path = absl::StrCat(folder, "/", name);
  LOCKSTEP_RETURN_IF_ERROR(
      WriteFile(path + ".json", report::JsonText(document)));
  LOCKSTEP_RETURN_IF_ERROR(WriteFile(
      path + ".html", report::HtmlPage(page != nullptr ? *page : document)));
  return WriteFile(path + ".md", report::MarkdownPage(document));
}

// Plain text.
namespace report {
namespace {

// Returns the number of characters; each is taken to be one column wide.
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

std::string PointsText(const std::vector<Term>& points) {
  std::string text;
  for (const Term& point : points) {
    absl::StrAppend(&text, Wrapped(absl::StrCat(point.name, ": ", point.text)));
  }
  return text;
}

std::string OutputText(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    absl::StrAppend(&text, "  ", OneLine(line), "\n");
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
      PointsText(section.points), OutputText(section.output),
      TableText(section.table), Wrapped(section.notes),
      Wrapped(section.conclusion));
}

std::string BarsText(const Document& document) {
  std::string text =
      document.bars.empty() ? "" : TableText(BarsTable(document.bars));
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
      Wrapped(document.verdict), Wrapped(document.about),
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

// Markdown in GitHub's dialect.
namespace {

std::string MarkdownParagraph(absl::string_view text) {
  return text.empty() ? "" : absl::StrCat(MarkdownText(text), "\n\n");
}

std::string MarkdownItems(const std::vector<std::string>& texts) {
  std::string items;
  for (const std::string& text : texts) {
    absl::StrAppend(&items, "- ", MarkdownText(text), "\n");
  }
  return items.empty() ? "" : items + "\n";
}

std::string MarkdownTable(const Table& table) {
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

// Returns the items, each as "- **name**: text".
std::string MarkdownTerms(const std::vector<Term>& terms) {
  std::string items;
  for (const Term& term : terms) {
    absl::StrAppend(&items, "- **", MarkdownText(term.name),
                    "**: ", MarkdownText(term.text), "\n");
  }
  return items.empty() ? "" : items + "\n";
}

// Returns a block of code. Its fence is longer than any run of backticks
// inside.
std::string MarkdownOutput(const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text, fence = "```";
  for (const std::string& line : lines) {
    absl::StrAppend(&text, OneLine(line), "\n");
  }
  while (absl::StrContains(text, fence)) fence.push_back('`');
  return absl::StrCat(fence, "\n", text, fence, "\n\n");
}

std::string MarkdownSection(const Section& section) {
  return absl::StrCat(
      section.title.empty()
          ? ""
          : absl::StrCat("## ", MarkdownText(section.title), "\n\n"),
      MarkdownParagraph(section.about), MarkdownTerms(section.points),
      MarkdownOutput(section.output), MarkdownTable(section.table),
      MarkdownItems(section.notes), MarkdownParagraph(section.conclusion));
}

std::string MarkdownBars(const Document& document) {
  std::string text;
  if (!document.bars.empty()) text = MarkdownTable(BarsTable(document.bars));
  if (!document.no_bars.empty()) {
    text += MarkdownItems({absl::StrCat("no bar: ", document.no_bars)});
  }
  return text.empty() ? "" : absl::StrCat("## Bars\n\n", text);
}

}  // namespace

std::string MarkdownPage(const Document& document) {
  const Origin& origin = document.origin;
  const std::string verdict =
      document.verdict.empty()
          ? ""
          : absl::StrCat("**", MarkdownText(document.verdict), "**\n\n");
  std::string text = absl::StrCat("# ", MarkdownText(document.title), "\n\n",
                                  verdict, MarkdownParagraph(document.about),
                                  MarkdownItems(document.notes));
  for (const Section& section : document.sections) {
    absl::StrAppend(&text, MarkdownSection(section));
  }
  absl::StrAppend(
      &text, MarkdownItems(document.remarks), MarkdownBars(document),
      MarkdownTerms(document.terms), MarkdownText(MachineText(origin.machine)),
      "; ", MarkdownCode(origin.created), "\n\n", MarkdownCode(origin.command));
  if (!origin.commit.empty()) {
    absl::StrAppend(&text, " at commit ", MarkdownText(origin.commit));
  }
  return text + "\n";
}

// JSON, with members in the document's order.
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const Value& value);

struct Converter {
  template <typename T>
  Json operator()(const T& value) const {
    return value;
  }
  Json operator()(const Value::Array& values) const {
    Json json = Json::array();
    for (const Value& value : values) json.push_back(ToJson(value));
    return json;
  }
  Json operator()(const Value::Object& members) const {
    Json json = Json::object();
    for (const auto& [key, value] : members) json[key] = ToJson(value);
    return json;
  }
};

Json ToJson(const Value& value) {
  return std::visit(Converter(), value.variant());
}

Json HostsJson(const std::vector<Host>& hosts) {
  Json json = Json::array();
  for (const Host& host : hosts) {
    json.push_back(
        {{"name", host.name}, {"ranks", host.ranks}, {"cores", host.cores}});
  }
  return json;
}

Json BarsJson(const std::vector<Bar>& bars) {
  Json json = Json::array();
  for (const Bar& bar : bars) {
    json.push_back(
        {{"what", bar.what},
         {bar.at_most ? "at_most" : "at_least", bar.needed},
         {"unit", bar.unit},
         {"value", bar.value ? Json(*bar.value) : Json()},
         {"met", bar.value && bar.judged ? Json(bar.Met()) : Json()}});
    if (bar.decimals) json.back()["decimals"] = *bar.decimals;
  }
  return json;
}

}  // namespace

std::string JsonText(const Document& document) {
  const Origin& origin = document.origin;
  Json json = {{"report", document.name},
               {"schema_version", document.schema_version},
               {"created", origin.created},
               {"command", origin.command},
               {"commit", ToJson(TextOrNull(origin.commit))},
               {"machine",
                {{"cpu", origin.machine.cpu},
                 {"cores", origin.machine.cores},
                 {"memory_bytes", origin.machine.memory_bytes},
                 {"system", origin.machine.system},
                 {"others_share", ToJson(Value(origin.others_share))}}}};
  if (!origin.hosts.empty()) json["hosts"] = HostsJson(origin.hosts);
  if (!document.data.is_null()) json.update(ToJson(document.data));
  if (!document.bars.empty()) json["bars"] = BarsJson(document.bars);
  if (!document.no_bars.empty()) json["no_bar"] = document.no_bars;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace report
}  // namespace lockstep
