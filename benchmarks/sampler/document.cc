// Formats the report: JSON keys, table columns, a chart and text. All numbers
// come from SamplerReport.
#include "benchmarks/sampler/document.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/group_digits.h"
#include "benchmarks/sampler/results.h"
#include "benchmarks/sampler/settings.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

using report::Cell;
using report::Milliseconds;
using report::Significant;
using report::Value;

Value RowData(const DrawRow& row) {
  const bool table = row.subject == DrawSubject::kTable;
  return {{"subject", Name(row.subject)},
          {"count", table ? Value() : Value(row.count)},
          {"crc32", table ? Value() : Value(row.checksum)},
          {"median", row.median},
          {"min", row.min},
          {"max", row.max},
          {"seconds", row.seconds},
          {"indices_per_second", row.indices_per_second},
          {"ratio_table", row.table_ratio},
          {"ratio_torch", row.torch_ratio}};
}

Value SizesData(const SamplerReport& report) {
  Value sizes = Value::Array();
  for (const DrawRows& rows : report.sizes) {
    Value draws = Value::Array();
    for (const DrawRow& row : rows.rows) draws.Add(RowData(row));
    sizes.Add(Value{{"dataset_size", rows.size},
                    {"rounds", rows.rounds},
                    {"draws", std::move(draws)}});
  }
  return sizes;
}

Value KeyedData(const std::optional<KeyedRow>& row) {
  if (!row.has_value()) return Value();
  return {
      {"dataset_size", row->size},
      {"block", row->block},
      {"indices_per_second",
       Value{{"median", row->median}, {"min", row->min}, {"max", row->max}}},
      {"seconds_per_index", row->seconds_per_index},
      {"memory_bytes", row->memory_bytes}};
}

Value DataOf(const SamplerReport& report) {
  return {{"settings", Value{{"world_size", kDrawWorldSize},
                             {"rank", kDrawRank},
                             {"seed", kDrawSeed},
                             {"epoch", kDrawEpoch},
                             {"paddle_batch_size", kDrawBatchSize},
                             {"rounds", report.settings.rounds},
                             {"seconds", report.settings.seconds}}},
          {"peer", report::TextOrNull(report.peer)},
          {"not_available", report::TextOrNull(report.missing)},
          {"results", SizesData(report)},
          {"keyed", KeyedData(report.keyed)}};
}

std::string Millions(double count) { return Significant(count / 1e6, 3); }

std::string OrDash(const std::optional<double>& ratio) {
  return ratio ? Significant(*ratio, 3) : "-";
}

std::vector<Cell> RowCells(const std::string& size, int rounds,
                           const DrawRow& row) {
  return {size,
          Name(row.subject),
          absl::StrCat(rounds),
          Milliseconds(row.median),
          Milliseconds(row.min),
          Milliseconds(row.max),
          row.indices_per_second ? Millions(*row.indices_per_second) : "-",
          OrDash(row.table_ratio),
          OrDash(row.torch_ratio)};
}

std::vector<Cell> KeyedCells(const KeyedRow& row) {
  return {GroupDigits(row.size), "keyed",
          absl::StrCat(
              Millions(row.median), " Mindex/s (", Millions(row.min), " to ",
              Millions(row.max), ") in blocks of ", row.block, ", ",
              absl::StrFormat(
                  "%.0f ns for one, %.2f MiB", 1e9 * row.seconds_per_index,
                  static_cast<double>(row.memory_bytes) / (1 << 20)))};
}

report::Table TableOf(const SamplerReport& report) {
  report::Table table = {
      .columns = {{.title = "n", .width = 17},
                  {.title = "what", .width = 8, .left = true},
                  {.title = "rounds", .width = 7},
                  {.title = "median ms", .width = 11},
                  {.title = "min ms", .width = 11},
                  {.title = "max ms", .width = 11},
                  {.title = "Mindex/s", .width = 11},
                  {.title = "/table", .width = 7},
                  {.title = "/torch", .width = 7}}};
  for (const DrawRows& rows : report.sizes) {
    std::string first = GroupDigits(rows.size);
    for (const DrawRow& row : rows.rows) {
      table.rows.push_back(RowCells(first, rows.rounds, row));
      first.clear();
    }
  }
  if (report.keyed) table.rows.push_back(KeyedCells(*report.keyed));
  return table;
}

bool HasPyTorch(const SamplerReport& report) {
  return std::ranges::any_of(report.sizes, [](const DrawRows& rows) {
    return FindRow(rows, DrawSubject::kPyTorch) != nullptr;
  });
}

// Returns a chart of the indices that each sampler draws per second, by size.
report::Chart ChartOf(const SamplerReport& report) {
  const std::pair<DrawSubject, const char*> subjects[] = {
      {DrawSubject::kTorch, "blue"},
      {DrawSubject::kExact, "green"},
      {DrawSubject::kPaddle, "purple"},
      {DrawSubject::kPyTorch, "orange"}};
  report::Chart chart = {.title = "Indices a second",
                         .x_title = "samples",
                         .y_title = "millions a second",
                         .decimals = 1};
  for (const auto& [subject, color] : subjects) {
    chart.series.push_back({.name = Name(subject), .color = color});
  }
  for (const DrawRows& rows : report.sizes) {
    chart.places.push_back(GroupDigits(rows.size));
    for (size_t i = 0; i < chart.series.size(); ++i) {
      std::optional<double> speed;
      if (const DrawRow* const row = FindRow(rows, subjects[i].first)) {
        speed = *row->indices_per_second / 1e6;
      }
      chart.series[i].values.push_back(speed);
    }
  }
  return chart;
}

void AddBelow(const SamplerReport& report, report::Document& document) {
  document.terms = {
      {"median, min, max",
       "times of a draw over the rounds, from a new epoch to a list of int64."},
      {"Mindex/s", "this rank's indices / median, in millions."},
      {"table",
       "n updates of 4 bytes at random places of a table of n, which do not "
       "depend on one another: the least time of a shuffle of a table."},
      {"/table, /torch",
       "the median of table, or of PyTorch, over this line's: above 1, this "
       "line is faster."}};
  if (HasPyTorch(report)) {
    document.remarks.push_back(
        "PyTorch's indices were the same as torch's in every round.");
  }
  if (!report.missing.empty()) {
    document.remarks.push_back(
        absl::StrCat("PyTorch: not available: ", report.missing));
  }
  document.bars = BarsOf(report);
}

}  // namespace

report::Document SamplerDocument(const SamplerReport& report, bool finished) {
  report::Document document = {
      .name = "lockstep.sampler",
      .title = "Lockstep sampler report",
      .about =
          absl::StrCat("one epoch's indices of n samples, for rank ", kDrawRank,
                       " of ", kDrawWorldSize, ", shuffled, on one thread"),
      .origin = report.origin,
      .sections = {{.table = TableOf(report)}},
      .method = {
          "A round draws the epoch once with each sampler. PyTorch runs in a "
          "process of its own; in every round its indices must equal ours. Our "
          "indices must be as many as the rank has, each must be a sample, and "
          "only Paddle's padding may repeat one."}};
  if (!report.peer.empty()) document.notes.push_back(report.peer);
  if (!finished) return document;
  document.data = DataOf(report);
  AddBelow(report, document);
  document.sections[0].charts = {ChartOf(report)};
  return document;
}

}  // namespace lockstep::benchmarks
