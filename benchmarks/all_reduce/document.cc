// The report's forms: keys and units, columns and words. Every number comes
// from the report.
#include "report/document.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/data_types.h"
#include "benchmarks/all_reduce/report.h"
#include "benchmarks/all_reduce/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {
namespace {

using report::Bytes;
using report::Cell;
using report::Chart;
using report::Column;
using report::Counted;
using report::Series;
using report::Significant;
using report::Value;

constexpr double kMicroseconds = 1e6;
constexpr double kGigabytes = 1e-9;  // Of 1e9 bytes each.

const char* NcclName(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return "double";
    case DataType::kFloat32:
      return "float";
    case DataType::kFloat16:
      return "half";
    default:
      return Name(type);
  }
}

const char* PeerKey(TeamKind peer) {
  return peer == TeamKind::kOpenMpi ? "mpi" : "gloo";
}

Value Scaled(const std::optional<double>& value, double unit) {
  return value.has_value() ? Value(*value * unit) : Value();
}

Value RowData(const AllReduceSettings& settings, const AllReduceSize& size,
              const AllReduceRow& row) {
  const Value::Object placement = {{"time", row.p50 * kMicroseconds},
                                   {"alg_bw", row.alg_bw * kGigabytes},
                                   {"bus_bw", row.bus_bw * kGigabytes},
                                   {"nwrong", row.wrong}};
  const bool peer = IsPeer(row.subject.team.kind);
  Value data = {{"size", size.bytes},
                {"count", size.count},
                {"type", NcclName(settings.type)},
                {"redop", Name(settings.op)},
                {"root", -1}};
  for (const auto& [key, value] : placement) data.Add(key, value);
  data.Add(settings.in_place ? "in_place" : "out_of_place", placement);
  data.Add("subject", Name(row.subject));
  data.Add("backend", peer ? Value() : Value(Name(row.subject.team.kind)));
  data.Add("algorithm",
           peer ? Value() : Value(Name(row.subject.team.algorithm)));
  data.Add("buffers", Name(row.subject.buffers));
  for (const auto& [key, seconds] :
       {std::pair("p50", row.p50), std::pair("p95", row.p95),
        std::pair("p99", row.p99), std::pair("mean", row.mean),
        std::pair("min", row.min), std::pair("max", row.max)}) {
    data.Add(key, seconds * kMicroseconds);
  }
  data.Add("samples", row.seconds.size());
  data.Add("rounds", size.rounds);
  data.Add("copy_bw", size.copy_bw * kGigabytes);
  data.Add("bound", Scaled(size.bound_seconds, kMicroseconds));
  data.Add("bound_fraction", row.bound_fraction);
  Value ratios = Value::Object();
  for (const PeerRatio& ratio : row.ratios) {
    ratios.Add(PeerKey(ratio.peer), ratio.ratio);
  }
  data.Add("ratios", std::move(ratios));
  return data;
}

Value DataOf(const AllReduceReport& report) {
  const AllReduceSettings& settings = report.settings;
  Value missing = Value::Object();
  for (const MissingPeer& peer : report.missing) {
    missing.Add(PeerKey(peer.peer), peer.why);
  }
  Value results = Value::Array();
  for (const AllReduceSize& size : report.sizes) {
    for (const AllReduceRow& row : size.rows) {
      results.Add(RowData(settings, size, row));
    }
  }
  return {{"settings", Value{{"world_size", settings.world_size},
                             {"dtype", Name(settings.type)},
                             {"op", Name(settings.op)},
                             {"in_place", settings.in_place},
                             {"iterations", settings.iterations},
                             {"warmup", settings.warmup},
                             {"rounds", settings.rounds},
                             {"seconds", settings.seconds}}},
          {"notes", report.notes},
          {"not_available", std::move(missing)},
          {"results", std::move(results)}};
}

std::string Microseconds(double seconds) {
  return Significant(kMicroseconds * seconds, 4);
}

std::string Bandwidth(double bytes_per_second) {
  return Significant(kGigabytes * bytes_per_second, 4);
}

std::string WrongText(int64_t wrong) {
  return wrong < 100000 ? absl::StrCat(wrong)
                        : absl::StrFormat("%.0e", static_cast<double>(wrong));
}

std::vector<Column> ColumnsOf(const AllReduceSettings& settings) {
  std::vector<Column> columns = {{.title = "size", .width = 9},
                                 {.title = "what", .width = 25, .left = true},
                                 {.title = "p50 us", .width = 8},
                                 {.title = "p95 us", .width = 8},
                                 {.title = "p99 us", .width = 8},
                                 {.title = "algbw", .width = 6},
                                 {.title = "busbw", .width = 6},
                                 {.title = "wrong", .width = 5},
                                 {.title = "bound", .width = 5}};
  for (const TeamKind peer : settings.peers) {
    columns.push_back({.title = absl::StrCat("/", PeerKey(peer)), .width = 5});
  }
  return columns;
}

std::vector<Cell> RowCells(const AllReduceSettings& settings,
                           const std::string& size, const AllReduceRow& row) {
  std::vector<Cell> cells = {
      size,
      Name(row.subject),
      Microseconds(row.p50),
      Microseconds(row.p95),
      Microseconds(row.p99),
      Bandwidth(row.alg_bw),
      Bandwidth(row.bus_bw),
      {WrongText(row.wrong),
       row.wrong == 0 ? report::Tone::kPlain : report::Tone::kBad},
      row.bound_fraction ? report::Percent(*row.bound_fraction) : "-"};
  for (const TeamKind peer : settings.peers) {
    std::string ratio = "-";
    for (const PeerRatio& each : row.ratios) {
      if (each.peer == peer) ratio = Significant(each.ratio, 3);
    }
    cells.emplace_back(ratio);
  }
  return cells;
}

report::Table TableOf(const AllReduceReport& report) {
  report::Table table = {.columns = ColumnsOf(report.settings)};
  for (const AllReduceSize& size : report.sizes) {
    std::string first = Bytes(size.bytes);
    for (const AllReduceRow& row : size.rows) {
      table.rows.push_back(RowCells(report.settings, first, row));
      first.clear();
    }
    if (!size.bound_seconds.has_value()) continue;
    table.rows.push_back(
        {"", absl::StrCat("bound: copy ", Bandwidth(size.copy_bw), " GB/s"),
         Microseconds(*size.bound_seconds), ""});
  }
  return table;
}

// Of the times or the bandwidths of every subject, by size.
Chart ChartOf(const AllReduceReport& report, std::string title,
              std::string y_title, std::string unit,
              double (*value)(const AllReduceRow& row)) {
  constexpr const char* kColors[] = {"blue",   "orange", "green", "purple",
                                     "yellow", "red",    "gray",  "dark"};
  Chart chart = {.title = std::move(title),
                 .y_title = std::move(y_title),
                 .decimals = 2,
                 .unit = std::move(unit)};
  for (const Subject& subject : SubjectsOf(report.settings)) {
    if (subject.team.kind == TeamKind::kCopy) continue;
    chart.series.push_back({.name = Name(subject),
                            .kind = Series::Kind::kLine,
                            .color = kColors[chart.series.size() % 8]});
  }
  for (const AllReduceSize& size : report.sizes) {
    chart.places.push_back(Bytes(size.bytes));
    chart.positions.push_back(static_cast<double>(size.bytes));
    for (Series& series : chart.series) {
      std::optional<double> point;
      for (const AllReduceRow& row : size.rows) {
        if (Name(row.subject) == series.name) point = value(row);
      }
      series.values.push_back(point);
    }
  }
  return chart;
}

// The bars of README.md for this row; none if it is not what they are for.
void AddBars(const AllReduceReport& report, const AllReduceSize& size,
             const AllReduceRow& row, std::vector<report::Bar>& bars) {
  const int ranks = report.settings.world_size;
  const bool group = row.subject.buffers == BufferKind::kGroup;
  const auto add = [&](double needed, const char* unit,
                       std::optional<double> value) {
    bars.push_back({.what = absl::StrCat(Bytes(size.bytes), ", ", ranks, " ",
                                         Name(row.subject)),
                    .needed = needed,
                    .unit = unit,
                    .value = value});
  };
  for (const PeerRatio& ratio : row.ratios) {
    if (ratio.peer != TeamKind::kOpenMpi) continue;
    constexpr const char* kUnit = "times as fast as Open MPI";
    if (ranks == 2 && size.bytes == 64 << 20) {
      add(group ? 4 : 2, kUnit, ratio.ratio);
    } else if ((ranks == 2 && size.bytes == 4 << 10) ||
               (ranks == 8 && size.bytes == 8 << 20)) {
      add(1, kUnit, ratio.ratio);
    }
  }
  if (ranks == 2 && size.bytes == 64 << 20 && group) {
    add(80, "percent of the bound", 100 * row.bound_fraction.value_or(0));
  }
}

std::vector<report::Bar> BarsOf(const AllReduceReport& report) {
  const AllReduceSettings& settings = report.settings;
  std::vector<report::Bar> bars;
  if (settings.type != DataType::kFloat32 || settings.op != ReduceOp::kSum ||
      !settings.in_place || report.origin.machine.cores != 2) {
    return bars;
  }
  for (const AllReduceSize& size : report.sizes) {
    for (const AllReduceRow& row : size.rows) {
      if (row.subject.team == Team{TeamKind::kProcesses, Algorithm::kAuto}) {
        AddBars(report, size, row, bars);
      }
    }
  }
  return bars;
}

void AddBelow(const AllReduceReport& report, report::Document& document) {
  document.terms = {
      {"p50, p95, p99",
       "of a call, as long as on its slowest rank; microseconds."},
      {"algbw", "size / p50."},
      {"busbw", "algbw x 2(P-1)/P; GB/s."},
      {"wrong",
       "elements of all timed calls, on all ranks, that are not the exact "
       "result."},
      {"bound",
       "what reading and writing every message once takes at the bandwidth of "
       "a copy; its share of p50."}};
  if (!report.settings.peers.empty()) {
    document.terms.push_back(
        {"/mpi, /gloo",
         "the p50 of Open MPI, of Gloo, over this one's: above 1 is faster "
         "than the peer."});
  }
  for (const MissingPeer& missing : report.missing) {
    document.remarks.push_back(
        absl::StrCat(Name(missing.peer), ": not available: ", missing.why));
  }
  document.bars = BarsOf(report);
}

}  // namespace

report::Document AllReduceDocument(const AllReduceReport& report,
                                   bool finished) {
  const AllReduceSettings& settings = report.settings;
  report::Document document = {
      .name = "lockstep.allreduce",
      .title = "Lockstep all-reduce report",
      .about =
          absl::StrCat("all-reduce, ", Counted(settings.world_size, "rank"),
                       ", ", Name(settings.type), " ", Name(settings.op),
                       settings.in_place ? ", in place" : ", out of place"),
      .origin = report.origin,
      .notes = report.notes,
      .sections = {{.table = TableOf(report)}},
      .method = {
          "A turn fills the buffers, warms up, fills them again, meets at a "
          "barrier and times calls one after the other, each on buffers of its "
          "own; then every element of every one is compared with the exact "
          "result. A round gives each line one turn."}};
  if (!finished) return document;
  document.data = DataOf(report);
  AddBelow(report, document);
  document.sections[0].charts = {
      ChartOf(report, "Time of a call", "us", " us",
              [](const AllReduceRow& row) { return kMicroseconds * row.p50; }),
      ChartOf(report, "Bus bandwidth", "GB/s", " GB/s",
              [](const AllReduceRow& row) { return kGigabytes * row.bus_bw; })};
  return document;
}

}  // namespace lockstep::benchmarks
