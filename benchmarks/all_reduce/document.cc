// Formats the report: JSON keys and units, table columns, charts and text. All
// numbers come from AllReduceReport.
#include "benchmarks/all_reduce/document.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "benchmarks/all_reduce/nccl_log.h"
#include "benchmarks/all_reduce/results.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/teams.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

using report::Bytes;
using report::Cell;
using report::Chart;
using report::Column;
using report::Counted;
using report::Series;
using report::Significant;
using report::TextOrNull;
using report::Value;

constexpr double kMicroseconds = 1e6;
constexpr double kGigabytes = 1e-9;  // 1 GB is 1e9 bytes.

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

const char* PeerKey(const Team& peer) {
  switch (peer.kind) {
    case TeamKind::kOpenMpi:
      return "mpi";
    case TeamKind::kGloo:
      return "gloo";
    case TeamKind::kOneCcl:
      return "oneccl";
    default:
      return peer.algorithm == Algorithm::kRing ? "nccl_ring" : "nccl";
  }
}

std::vector<Team> PeersOf(const AllReduceSettings& settings) {
  std::vector<Team> peers;
  for (const Team& team : TeamsOf(settings)) {
    if (IsPeer(team.kind)) peers.push_back(team);
  }
  return peers;
}

// "all-reduce"
std::string HyphenatedName(Operation operation) {
  return absl::StrReplaceAll(CollectiveName(operation), {{"_", "-"}});
}

Value Scaled(const std::optional<double>& value, double unit) {
  return value.has_value() ? Value(*value * unit) : Value();
}

// Returns whether a direct subject takes the ring: in ordinary memory, or if
// ranks cannot read each other's memory.
bool TakesRing(const AllReduceReport& report, const Subject& subject) {
  if (subject.team.kind != TeamKind::kNccl ||
      subject.team.algorithm != Algorithm::kDirect) {
    return false;
  }
  return subject.buffers != BufferKind::kGroup ||
         std::ranges::none_of(report.nccl, [&](const NcclProbe& probe) {
           return probe.team == subject.team && probe.direct;
         });
}

// Returns the subject's name, and says so if a direct subject takes the ring.
std::string LabelOf(const AllReduceReport& report, const Subject& subject) {
  return absl::StrCat(Name(subject),
                      TakesRing(report, subject) ? " (ring)" : "");
}

Value RowData(const AllReduceReport& report, const AllReduceSize& size,
              const AllReduceRow& row) {
  const AllReduceSettings& settings = report.settings;
  const bool moves = settings.world_size > 1;
  const Value::Object placement = {
      {"time", row.p50 * kMicroseconds},
      {"alg_bw", moves ? Value(row.alg_bw * kGigabytes) : Value()},
      {"bus_bw", moves ? Value(row.bus_bw * kGigabytes) : Value()},
      {"nwrong", row.wrong}};
  const TeamKind kind = row.subject.team.kind;
  const bool peer = IsPeer(kind);
  const bool broadcast = size.operation == Operation::kBroadcast;
  Value data = {{"size", size.bytes},
                {"world_size", settings.world_size},
                {"count", size.count},
                {"type", NcclName(settings.type)},
                {"redop", Reduces(size.operation) ? Name(settings.op) : "none"},
                {"root", broadcast ? 0 : -1}};
  for (const auto& [key, value] : placement) data.Add(key, value);
  data.Add(
      InPlace(settings, size.operation, kind) ? "in_place" : "out_of_place",
      placement);
  data.Add("collective", CollectiveName(size.operation));
  data.Add("subject", LabelOf(report, row.subject));
  data.Add("backend", peer ? Value() : Value(Name(kind)));
  data.Add("algorithm",
           peer ? TextOrNull(std::string(PeerAlgorithm(row.subject)))
                : Value(Name(row.subject.team.algorithm)));
  data.Add("buffers", Name(row.subject.buffers));
  for (const auto& [key, seconds] :
       {std::pair("p50", row.p50), std::pair("p95", row.p95),
        std::pair("p99", row.p99), std::pair("mean", row.mean),
        std::pair("min", row.min), std::pair("max", row.max)}) {
    data.Add(key, seconds * kMicroseconds);
  }
  data.Add("host_us", Scaled(row.host, kMicroseconds));
  data.Add("nccl", OnGpu(kind) ? Value{{"algorithm", row.choice.algorithm},
                                       {"protocol", row.choice.protocol},
                                       {"channels", row.choice.channels}}
                               : Value());
  data.Add("samples", row.seconds.size());
  data.Add("rounds", row.rounds);
  data.Add("update_bw",
           size.update_bw > 0 ? Value(size.update_bw * kGigabytes) : Value());
  data.Add("bound", Scaled(size.bound_seconds, kMicroseconds));
  data.Add("bound_fraction", row.bound_fraction);
  Value ratios = Value::Object();
  for (const PeerRatio& ratio : row.ratios) {
    ratios.Add(PeerKey(ratio.peer), ratio.ratio);
  }
  data.Add("ratios", std::move(ratios));
  return data;
}

// Returns NCCL's facts by the team's name, or null for reports without GPUs.
Value NcclData(const AllReduceReport& report) {
  Value data;
  for (const NcclProbe& probe : report.nccl) {
    const NcclFacts& facts = probe.facts;
    Value transports = Value::Array();
    for (const std::string& each : facts.transports) transports.Add(each);
    Value environment = Value::Object();
    for (const auto& [name, value] : facts.environment) {
      environment.Add(name, value);
    }
    data.Add(Name(probe.team), Value{{"version", facts.version},
                                     {"network", facts.network},
                                     {"channels", facts.channels},
                                     {"p2p", facts.p2p},
                                     {"nvls", facts.nvls},
                                     {"transports", std::move(transports)},
                                     {"environment", std::move(environment)}});
  }
  return data;
}

bool SharesGpu(const AllReduceReport& report) {
  return std::ranges::any_of(report.nccl, &NcclProbe::shared_gpu);
}

// Returns the reports' own notes, each once.
std::vector<std::string> NotesOf(std::span<const AllReduceReport> reports) {
  std::vector<std::string> notes;
  for (const AllReduceReport& report : reports) {
    for (const std::string& note : report.notes) {
      if (std::ranges::count(notes, note) == 0) notes.push_back(note);
    }
  }
  return notes;
}

// Returns, for each missing peer, the reasons why, each once.
std::vector<std::pair<Team, std::string>> MissingPeerReasons(
    std::span<const AllReduceReport> reports) {
  std::vector<std::pair<Team, std::string>> reasons;
  for (const AllReduceReport& report : reports) {
    for (const MissingPeer& missing : report.missing) {
      const auto found = std::ranges::find(
          reasons, missing.peer, &std::pair<Team, std::string>::first);
      if (found == reasons.end()) {
        reasons.emplace_back(missing.peer, missing.why);
      } else if (!absl::StrContains(found->second, missing.why)) {
        absl::StrAppend(&found->second, "; ", missing.why);
      }
    }
  }
  return reasons;
}

// Returns the values of a setting in all reports, each once, in order.
template <typename Of>
auto DistinctValues(std::span<const AllReduceReport> reports, const Of& of) {
  std::vector<std::decay_t<decltype(of(reports[0].settings))>> values;
  for (const AllReduceReport& report : reports) {
    auto value = of(report.settings);
    if (std::ranges::count(values, value) == 0) values.push_back(value);
  }
  return values;
}

std::vector<int> WorldSizes(std::span<const AllReduceReport> reports) {
  return DistinctValues(reports,
                        [](const auto& each) { return each.world_size; });
}

std::vector<std::string> Types(std::span<const AllReduceReport> reports) {
  return DistinctValues(
      reports, [](const auto& each) { return std::string(Name(each.type)); });
}

const char* PlacementText(bool in_place) {
  return in_place ? "in place" : "out of place";
}

std::vector<std::string> Placements(std::span<const AllReduceReport> reports) {
  return DistinctValues(reports, [](const auto& each) {
    return std::string(PlacementText(each.in_place));
  });
}

Value DataOf(std::span<const AllReduceReport> reports) {
  const AllReduceReport& first = reports[0];
  const AllReduceSettings& settings = first.settings;
  Value missing = Value::Object();
  for (const auto& [peer, why] : MissingPeerReasons(reports)) {
    missing.Add(PeerKey(peer), why);
  }
  Value collectives = Value::Array();
  for (const Operation operation : settings.collectives) {
    collectives.Add(CollectiveName(operation));
  }
  Value results = Value::Array();
  for (const AllReduceReport& report : reports) {
    for (const AllReduceSize& size : report.sizes) {
      for (const AllReduceRow& row : size.rows) {
        results.Add(RowData(report, size, row));
      }
    }
  }
  return {{"gpu", TextOrNull(first.nccl.empty() ? "" : first.nccl[0].gpu)},
          {"shared_gpu", SharesGpu(first)},
          {"nccl", NcclData(first)},
          {"settings", Value{{"collectives", std::move(collectives)},
                             {"world_sizes", WorldSizes(reports)},
                             {"dtypes", Types(reports)},
                             {"op", Name(settings.op)},
                             {"places", Placements(reports)},
                             {"iterations", settings.iterations},
                             {"warmup", settings.warmup},
                             {"rounds", settings.rounds},
                             {"seconds", settings.seconds}}},
          {"notes", NotesOf(reports)},
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

// The width of the column with NCCL's choices. GPUs have that column in place
// of the bound, which is of host memory. They have no percentiles, because
// turns give too few samples.
constexpr int kChoiceWidth = 20;

std::vector<Column> ColumnsOf(const AllReduceSettings& settings) {
  std::vector<Column> columns;
  if (OnGpu(settings)) {
    columns = {{.title = "size", .width = 9},
               {.title = "what", .width = 20, .left = true},
               {.title = "p50 us", .width = 8},
               {.title = "host us", .width = 7},
               {.title = "algbw", .width = 6},
               {.title = "busbw", .width = 6},
               {.title = "wrong", .width = 5},
               {.title = "NCCL chose", .width = kChoiceWidth, .left = true}};
  } else {
    columns = {{.title = "size", .width = 9},
               {.title = "what", .width = 25, .left = true},
               {.title = "p50 us", .width = 8},
               {.title = "p95 us", .width = 8},
               {.title = "p99 us", .width = 8},
               {.title = "algbw", .width = 6},
               {.title = "busbw", .width = 6},
               {.title = "wrong", .width = 5},
               {.title = "bound", .width = 5}};
  }
  for (const Team& peer : PeersOf(settings)) {
    const absl::string_view key = PeerKey(peer);
    columns.push_back(
        {.title = absl::StrCat("/", key == "nccl_ring" ? "ring" : key),
         .width = 5});
  }
  return columns;
}

// Returns "RING SIMPLE 24", or "-" if the log omits the call. Cuts a long name.
std::string ChoiceText(const NcclChoice& choice) {
  if (choice == NcclChoice()) return "-";
  std::string rest;
  for (const std::string& part : {choice.protocol, choice.channels}) {
    if (part != kUnknown) absl::StrAppend(&rest, " ", part);
  }
  return choice.algorithm.substr(0, kChoiceWidth - rest.size()) + rest;
}

std::vector<Cell> RowCells(const AllReduceReport& report,
                           const std::string& size, const AllReduceRow& row) {
  const AllReduceSettings& settings = report.settings;
  std::vector<Cell> cells = {size, LabelOf(report, row.subject),
                             Microseconds(row.p50)};
  const bool gpu = OnGpu(settings);
  if (gpu) {
    cells.emplace_back(row.host ? Microseconds(*row.host) : "-");
  } else {
    cells.emplace_back(Microseconds(row.p95));
    cells.emplace_back(Microseconds(row.p99));
  }
  const bool moves = settings.world_size > 1;  // One rank moves nothing.
  cells.emplace_back(moves ? Bandwidth(row.alg_bw) : "-");
  cells.emplace_back(moves ? Bandwidth(row.bus_bw) : "-");
  cells.emplace_back(WrongText(row.wrong), row.wrong == 0 ? report::Tone::kPlain
                                                          : report::Tone::kBad);
  if (gpu) {
    cells.emplace_back(ChoiceText(row.choice));
  } else {
    cells.emplace_back(row.bound_fraction ? report::Percent(*row.bound_fraction)
                                          : "-");
  }
  for (const Team& peer : PeersOf(settings)) {
    std::string ratio = "-";
    for (const PeerRatio& each : row.ratios) {
      if (each.peer == peer) ratio = Significant(each.ratio, 3);
    }
    cells.emplace_back(ratio);
  }
  return cells;
}

// Returns the rows of all backends, and the fastest row of each peer.
std::vector<const AllReduceRow*> ShownRows(const AllReduceSize& size) {
  std::vector<const AllReduceRow*> rows;
  for (const AllReduceRow& row : size.rows) {
    if (!IsPeer(row.subject.team.kind)) rows.push_back(&row);
  }
  for (const AllReduceRow* const peer : BestPeers(size.rows)) {
    rows.push_back(peer);
  }
  return rows;
}

report::Table TableOf(const AllReduceReport& report, Operation operation) {
  report::Table table = {.columns = ColumnsOf(report.settings)};
  for (const AllReduceSize& size : report.sizes) {
    if (size.operation != operation) continue;
    std::string first = Bytes(size.bytes);
    for (const AllReduceRow* const row : ShownRows(size)) {
      table.rows.push_back(RowCells(report, first, *row));
      first.clear();
    }
    if (!size.bound_seconds.has_value()) continue;
    table.rows.push_back(
        {"",
         size.bytes < kSmallestWithBound
             ? std::string("bound: exchange")
             : absl::StrCat("bound: update ", Bandwidth(size.update_bw),
                            " GB/s"),
         Microseconds(*size.bound_seconds), ""});
  }
  return table;
}

// Returns a chart of the times or bandwidths of every subject by size. A peer
// has one line, for its fastest algorithm at each size.
Chart ChartOf(const AllReduceReport& report, Operation operation,
              std::string title, std::string y_title, std::string unit,
              double (*value)(const AllReduceRow& row)) {
  constexpr const char* kColors[] = {"blue",   "orange", "green", "purple",
                                     "yellow", "red",    "gray",  "dark"};
  Chart chart = {.title = std::move(title),
                 .y_title = std::move(y_title),
                 .decimals = 2,
                 .unit = std::move(unit)};
  for (const Subject& subject : SubjectsOf(report.settings)) {
    if (IsControl(subject.team.kind) || subject.peer_algorithm > 0) {
      continue;
    }
    chart.series.push_back({.name = LabelOf(report, subject),
                            .kind = Series::Kind::kLine,
                            .color = kColors[chart.series.size() % 8]});
  }
  for (const AllReduceSize& size : report.sizes) {
    if (size.operation != operation) continue;
    chart.places.push_back(Bytes(size.bytes));
    chart.positions.push_back(static_cast<double>(size.bytes));
    for (Series& series : chart.series) {
      std::optional<double> point;
      for (const AllReduceRow* const row : ShownRows(size)) {
        Subject subject = row->subject;
        subject.peer_algorithm = 0;
        if (LabelOf(report, subject) == series.name) point = value(*row);
      }
      series.values.push_back(point);
    }
  }
  return chart;
}

// The sizes to which README.md's bars apply. Each bar shows the worst size.
constexpr int64_t kLargestWithBar = 256 << 20;
constexpr int64_t kSmallestWithBoundBar = 16 << 20;

void AddBars(const AllReduceReport& report, const Subject& subject,
             std::vector<report::Bar>& bars) {
  std::optional<double> ratio, bound;
  int64_t slowest = 0, farthest = 0;
  for (const AllReduceSize& size : report.sizes) {
    if (size.operation != Operation::kAllReduce ||
        size.bytes > kLargestWithBar) {
      continue;
    }
    for (const AllReduceRow& row : size.rows) {
      if (row.subject != subject) continue;
      for (const PeerRatio& each : row.ratios) {
        if (each.ratio >= ratio.value_or(each.ratio + 1)) continue;
        ratio = each.ratio;
        slowest = size.bytes;
      }
      if (size.bytes < kSmallestWithBoundBar || !row.bound_fraction ||
          *row.bound_fraction >= bound.value_or(*row.bound_fraction + 1)) {
        continue;
      }
      bound = row.bound_fraction;
      farthest = size.bytes;
    }
  }
  const std::string what =
      absl::StrCat(report.settings.world_size, " ", Name(subject));
  if (ratio) {
    bars.push_back({.what = absl::StrCat(what, ", worst at ", Bytes(slowest)),
                    .needed = 1.2,
                    .unit = "times as fast as the best peer",
                    .value = ratio});
  }
  if (bound && subject.buffers == BufferKind::kGroup) {
    bars.push_back({.what = absl::StrCat(what, ", worst at ", Bytes(farthest)),
                    .needed = 90,
                    .unit = "percent of the bound",
                    .value = 100 * *bound,
                    .judged = *bound <= 1});
  }
}

// Returns the smallest message for which a communicator on GPUs should be as
// fast as NCCL's ring, or nothing if the subject has no such bar.
std::optional<int64_t> SmallestSizeWithRatioBar(const AllReduceReport& report,
                                                const Subject& subject) {
  const Algorithm algorithm = subject.team.algorithm;
  if (algorithm == Algorithm::kRing && report.settings.world_size == 2) {
    return 128 << 20;
  }
  if (algorithm == Algorithm::kDirect && !TakesRing(report, subject)) {
    return 1 << 20;
  }
  return std::nullopt;
}

// Adds the bars of our communicator on GPUs. Each bar shows the worst size.
void AddGpuBars(const AllReduceReport& report, const Subject& subject,
                std::vector<report::Bar>& bars) {
  const std::optional<int64_t> from = SmallestSizeWithRatioBar(report, subject);
  std::optional<double> host, ratio;
  for (const AllReduceSize& size : report.sizes) {
    if (size.operation != Operation::kAllReduce) continue;
    for (const AllReduceRow& row : size.rows) {
      if (row.subject != subject) continue;
      if (row.host) host = std::max(host.value_or(0), *row.host);
      for (const PeerRatio& each : row.ratios) {
        const bool ring = each.peer.algorithm == Algorithm::kRing;
        if (!ring || !from || size.bytes < *from) continue;
        ratio = std::min(ratio.value_or(each.ratio), each.ratio);
      }
    }
  }
  const std::string what =
      absl::StrCat(report.settings.world_size, " ", LabelOf(report, subject));
  if (host) {
    bars.push_back({.what = what,
                    .needed = 30,
                    .at_most = true,
                    .unit = "us until an all-reduce has returned",
                    .value = *host * kMicroseconds});
  }
  if (from && !SharesGpu(report)) {
    const bool ring = subject.team.algorithm == Algorithm::kRing;
    bars.push_back({.what = absl::StrCat("from ", Bytes(*from), ", ", what),
                    .needed = ring ? 0.95 : 1,
                    .unit = "times as fast as NCCL_ALGO=Ring",
                    .value = ratio});
  }
}

std::vector<report::Bar> BarsOf(const AllReduceReport& report) {
  const AllReduceSettings& settings = report.settings;
  std::vector<report::Bar> bars;
  if (settings.type != DataType::kFloat32 || settings.op != ReduceOp::kSum ||
      !settings.in_place) {
    return bars;
  }
  if (OnGpu(settings)) {
    for (const Subject& subject : SubjectsOf(settings)) {
      if (subject.team.kind == TeamKind::kNccl) {
        AddGpuBars(report, subject, bars);
      }
    }
    return bars;
  }
  if (report.origin.machine.cores != 2) return bars;
  for (const Subject& subject : SubjectsOf(settings)) {
    if (subject.team == Team{TeamKind::kProcesses, Algorithm::kAuto}) {
      AddBars(report, subject, bars);
    }
  }
  return bars;
}

std::string BusTerm(const AllReduceSettings& settings) {
  if (settings.collectives.size() > 1) {
    return "algbw x 2(P-1)/P for all-reduce, x 1 for broadcast, x (P-1)/P for "
           "the others; GB/s.";
  }
  switch (settings.collectives[0]) {
    case Operation::kAllReduce:
      return "algbw x 2(P-1)/P; GB/s.";
    case Operation::kBroadcast:
      return "algbw; GB/s.";
    default:
      return "algbw x (P-1)/P; GB/s.";
  }
}

std::vector<report::Term> TermsOf(const AllReduceSettings& settings) {
  std::vector<report::Term> terms;
  if (OnGpu(settings)) {
    terms = {{"p50",
              "the median over turns of a call's mean time, measured by GPU "
              "events around all calls of a turn, on the slowest rank; "
              "microseconds."},
             {"host us", "the mean time until a call returned."}};
  } else {
    terms = {{"p50, p95, p99",
              "percentiles of a call's time on its slowest rank; "
              "microseconds."}};
  }
  terms.push_back({"algbw", "size / p50."});
  terms.push_back({"busbw", BusTerm(settings)});
  terms.push_back(
      {"wrong",
       "the number of elements of all timed calls, on all ranks, that are not "
       "the exact result."});
  if (OnGpu(settings)) {
    terms.push_back({"NCCL chose",
                     "algorithm, protocol and channels from NCCL's log; - for "
                     "sends and receives, which the log does not mention."});
  } else {
    terms.push_back(
        {"bound",
         "the time to read and write every message once, at the bandwidth of "
         "an update in place of memory that was just written; up to 256 B, "
         "with a core for each rank, the p50 of threads that only exchange "
         "the messages; as a share of p50."});
  }
  if (settings.peers.empty()) return terms;
  terms.push_back(
      OnGpu(settings)
          ? report::Term{"/nccl, /ring",
                         "the p50 of NCCL's own call, as it chooses and with "
                         "NCCL_ALGO=Ring, over this line's: above 1, this line "
                         "is faster."}
          : report::Term{"/mpi, /gloo, /oneccl",
                         "the p50 of Open MPI, of Gloo, of oneCCL, over this "
                         "line's: above 1, this line is faster."});
  return terms;
}

// Returns "NCCL 2.28.9+cuda13.0; channels 24 coll, 16 nvls, 32 p2p; network IB;
// P2P all pairs; NVLS available; by P2P/CUMEM; NCCL_P2P_LEVEL=NVL".
std::string FactsText(const NcclFacts& facts) {
  std::string text = absl::StrCat(
      "NCCL ", facts.version, "; channels ", facts.channels, "; network ",
      facts.network, "; P2P ", facts.p2p, "; NVLS ", facts.nvls, "; by ",
      facts.transports.empty() ? kUnknown
                               : absl::StrJoin(facts.transports, ", "));
  for (const auto& [name, value] : facts.environment) {
    absl::StrAppend(&text, "; ", name, "=", value);
  }
  return text;
}

// Returns the notes that are known before the first turn. Teams with the same
// facts about NCCL share a line.
std::vector<std::string> NotesOn(std::span<const AllReduceReport> reports) {
  const AllReduceReport& report = reports[0];
  std::vector<std::string> notes = NotesOf(reports);
  if (!report.origin.hosts.empty()) {
    notes.push_back("Hosts: " + HostsText(report.origin.hosts));
  }
  if (report.nccl.empty()) return notes;
  notes.push_back("GPU: " + report.nccl[0].gpu);
  if (SharesGpu(report)) {
    notes.push_back(
        "shared_gpu: true: ranks share a GPU, so times and bandwidths mean "
        "nothing; answers are still checked.");
  }
  std::vector<std::pair<std::string, std::string>> lines;  // Facts, teams.
  for (const NcclProbe& probe : report.nccl) {
    const std::string text = FactsText(probe.facts);
    const auto found = std::ranges::find(
        lines, text, &std::pair<std::string, std::string>::first);
    if (found == lines.end()) {
      lines.emplace_back(text, Name(probe.team));
    } else {
      absl::StrAppend(&found->second, ", ", Name(probe.team));
    }
  }
  for (const auto& [text, teams] : lines) {
    notes.push_back(absl::StrCat(teams, ": ", text));
  }
  return notes;
}

report::Section SectionOf(const AllReduceReport& report, Operation operation,
                          bool finished) {
  report::Section section = {.table = TableOf(report, operation)};
  // A title is needed only next to other collectives.
  if (report.settings.collectives.size() > 1)
    section.title = HyphenatedName(operation);
  if (!finished) return section;
  section.charts = {
      ChartOf(report, operation, "Time of a call", "us", " us",
              [](const AllReduceRow& row) { return kMicroseconds * row.p50; })};
  if (report.settings.world_size == 1) return section;
  section.charts.push_back(
      ChartOf(report, operation, "Bus bandwidth", "GB/s", " GB/s",
              [](const AllReduceRow& row) { return kGigabytes * row.bus_bw; }));
  return section;
}

// "all-reduce, 2 ranks, float32 sum, in place"
std::string Summary(std::span<const AllReduceReport> reports) {
  const AllReduceSettings& settings = reports[0].settings;
  std::string text;
  for (const Operation operation : settings.collectives) {
    absl::StrAppend(&text, HyphenatedName(operation), ", ");
  }
  const std::vector<int> sizes = WorldSizes(reports);
  return absl::StrCat(
      text,
      sizes.size() == 1 ? Counted(sizes[0], "rank")
                        : absl::StrCat(absl::StrJoin(sizes, " and "), " ranks"),
      ", ", absl::StrJoin(Types(reports), " and "), " ", Name(settings.op),
      ", ", absl::StrJoin(Placements(reports), " and "));
}

// Adds the tables of one report that have begun. A collective's table begins
// with its first measured size, and the first table of all begins at once.
void AddSections(const AllReduceReport& report, bool only, bool first,
                 bool finished, report::Document& document) {
  const AllReduceSettings& settings = report.settings;
  for (const Operation operation : settings.collectives) {
    const bool measured = std::ranges::count(report.sizes, operation,
                                             &AllReduceSize::operation) > 0;
    const bool begun = measured || (only && finished) ||
                       (first && operation == settings.collectives[0]);
    if (!begun) return;
    report::Section section = SectionOf(report, operation, finished);
    if (!only) {
      section.title = absl::StrCat(
          section.title, section.title.empty() ? "" : ", ",
          Counted(settings.world_size, "rank"), ", ", Name(settings.type), ", ",
          PlacementText(settings.in_place));
    }
    document.sections.push_back(std::move(section));
  }
}

}  // namespace

report::Document AllReduceDocument(std::span<const AllReduceReport> reports,
                                   bool finished) {
  report::Document document = {
      .name = "lockstep.allreduce",
      .schema_version = 2,
      .title = "Lockstep all-reduce report",
      .about = Summary(reports),
      .origin = reports[0].origin,
      .notes = NotesOn(reports),
      .method = {
          "A turn fills the buffers, warms up, fills them again, meets at a "
          "barrier and times calls one after the other, each on buffers of its "
          "own. Then every element of every call is compared with the exact "
          "result. A round gives each line one turn."}};
  for (const AllReduceReport& report : reports) {
    AddSections(report, reports.size() == 1, &report == &reports[0], finished,
                document);
  }
  if (!finished) return document;
  document.data = DataOf(reports);
  document.terms = TermsOf(reports[0].settings);
  for (const auto& [peer, why] : MissingPeerReasons(reports)) {
    document.remarks.push_back(
        absl::StrCat(Name(peer), ": not available: ", why));
  }
  for (const AllReduceReport& report : reports) {
    document.remarks.insert(document.remarks.end(), report.remarks.begin(),
                            report.remarks.end());
    const std::vector<report::Bar> bars = BarsOf(report);
    document.bars.insert(document.bars.end(), bars.begin(), bars.end());
  }
  return document;
}

}  // namespace lockstep::benchmarks
