// Formatting only: every number comes from the report.
#include "benchmarks/all_reduce/table.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "report/terminal.h"

namespace lockstep::benchmarks {
namespace {

constexpr int64_t kLongNumber = 10000000;  // Too long for its column.

constexpr char kLegend[] =
    "p50, p95, p99: of a call, as long as on its slowest rank. algbw: size / "
    "p50; busbw: algbw x 2(P-1)/P; GB/s. wrong: elements of all timed calls, "
    "on "
    "all ranks, that are not the exact result. bound: what reading and writing "
    "every message once takes at the bandwidth of a copy; its share of p50.";

constexpr char kPeerLegend[] =
    "/mpi, /gloo: the p50 of Open MPI, of Gloo, over this one's: above 1 is "
    "faster than the peer.";

std::string PeerColumn(TeamKind peer) {
  return peer == TeamKind::kOpenMpi ? "/mpi" : "/gloo";
}

std::string Microseconds(double seconds) {
  const double us = 1e6 * seconds;
  return absl::StrFormat("%.*f", us < 100 ? 2 : us < 10000 ? 1 : 0, us);
}

// In GB/s, 1e9 bytes each.
std::string Bandwidth(double bytes_per_second) {
  const double gb = 1e-9 * bytes_per_second;
  return absl::StrFormat("%.*f", gb < 10 ? 3 : gb < 100 ? 2 : 1, gb);
}

std::string Count(int64_t wrong) {
  return wrong < 100000 ? absl::StrCat(wrong)
                        : absl::StrFormat("%.0e", static_cast<double>(wrong));
}

std::string Ratio(double ratio) {
  return absl::StrFormat("%.*f", ratio < 10 ? 2 : ratio < 100 ? 1 : 0, ratio);
}

std::string RatioCells(const AllReduceSettings& settings,
                       const AllReduceRow& row) {
  std::string cells;
  for (const TeamKind peer : settings.peers) {
    std::string cell = "-";
    for (const PeerRatio& ratio : row.ratios) {
      if (ratio.peer == peer) cell = Ratio(ratio.ratio);
    }
    absl::StrAppendFormat(&cells, "%6s", cell);
  }
  return cells;
}

std::string Line(absl::string_view size, absl::string_view what,
                 absl::string_view p50, absl::string_view p95,
                 absl::string_view p99, absl::string_view alg_bw,
                 absl::string_view bus_bw, absl::string_view wrong,
                 absl::string_view bound, absl::string_view peers) {
  return absl::StrFormat("%9s %-25s%9s%9s%9s%7s%7s%6s%6s%s\n", size, what, p50,
                         p95, p99, alg_bw, bus_bw, wrong, bound, peers);
}

std::string FormatRow(const AllReduceSettings& settings,
                      const std::string& size, const AllReduceRow& row) {
  const std::string bound =
      row.bound_fraction.has_value()
          ? absl::StrFormat("%.0f%%", 100 * *row.bound_fraction)
          : "-";
  return Line(size, Name(row.subject), Microseconds(row.p50),
              Microseconds(row.p95), Microseconds(row.p99),
              Bandwidth(row.alg_bw), Bandwidth(row.bus_bw), Count(row.wrong),
              bound, RatioCells(settings, row));
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {" B", " KiB", " MiB", " GiB"};
  int unit = 0;
  int64_t whole = bytes;
  while (unit < 3 && whole >= 1024 && whole % 1024 == 0) {
    whole /= 1024;
    ++unit;
  }
  if (whole < kLongNumber) return absl::StrCat(whole, kUnits[unit]);
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 999.95 ? absl::StrFormat("%.1f MiB", mib)
                      : absl::StrFormat("%.1f GiB", mib / 1024);
}

std::string FormatAllReduceHeading(const AllReduceReport& report) {
  const AllReduceSettings& settings = report.settings;
  const Machine& machine = report.machine;
  std::string text = WrapText(
      absl::StrCat("all-reduce, ", settings.world_size,
                   settings.world_size == 1 ? " rank, " : " ranks, ",
                   Name(settings.type), " ", Name(settings.op),
                   settings.in_place ? ", in place" : ", out of place"),
      kTableColumns);
  absl::StrAppend(
      &text,
      WrapText(absl::StrCat(
                   machine.cpu, ", ", machine.cores,
                   machine.cores == 1 ? " core, " : " cores, ",
                   absl::StrFormat(
                       "%.0f GiB, ",
                       static_cast<double>(machine.memory_bytes) / (1 << 30)),
                   machine.system, "; ", report.created),
               kTableColumns));
  if (!report.commit.empty()) {
    absl::StrAppend(&text, "commit ", report.commit, "\n");
  }
  absl::StrAppend(&text, report.command, "\n");
  for (const std::string& note : report.notes) {
    absl::StrAppend(&text, WrapText(note, kTableColumns));
  }
  std::string peers;
  for (const TeamKind peer : settings.peers) {
    absl::StrAppendFormat(&peers, "%6s", PeerColumn(peer));
  }
  return absl::StrCat(text, "\n",
                      Line("size", "what", "p50 us", "p95 us", "p99 us",
                           "algbw", "busbw", "wrong", "bound", peers));
}

std::string FormatAllReduceSize(const AllReduceSettings& settings,
                                const AllReduceSize& size) {
  std::string text;
  std::string first = FormatBytes(size.bytes);
  for (const AllReduceRow& row : size.rows) {
    absl::StrAppend(&text, FormatRow(settings, first, row));
    first.clear();
  }
  if (size.bound_seconds.has_value()) {
    const std::string what =
        absl::StrCat("bound: copy ", Bandwidth(size.copy_bw), " GB/s");
    absl::StrAppend(&text, absl::StrFormat("%9s %-25s%9s\n", "", what,
                                           Microseconds(*size.bound_seconds)));
  }
  return text;
}

std::string FormatAllReduceLegend(const AllReduceReport& report) {
  std::string text = absl::StrCat("\n", WrapText(kLegend, kTableColumns),
                                  report.settings.peers.empty()
                                      ? ""
                                      : WrapText(kPeerLegend, kTableColumns));
  for (const MissingPeer& missing : report.missing) {
    absl::StrAppend(&text,
                    WrapText(absl::StrCat(Name(missing.peer),
                                          ": not available: ", missing.why),
                             kTableColumns));
  }
  return text;
}

}  // namespace lockstep::benchmarks
