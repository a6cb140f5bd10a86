// Formatting only: every number comes from the report.
#include "benchmarks/sampler/table.h"

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "benchmarks/sampler/plan.h"
#include "benchmarks/sampler/report.h"
#include "report/terminal.h"

namespace lockstep::benchmarks {
namespace {

constexpr char kLegend[] =
    "median, min, max: of a draw, from a new epoch to a list of int64, over "
    "the rounds. Mindex/s: this rank's indices / median, in millions. table: n "
    "updates of 4 bytes at random places of a table of n, none of which waits "
    "for another: what a shuffle of a table takes at least. /table, /torch: "
    "its median, or PyTorch's, over this one's: above 1 is faster.";
constexpr char kSameIndices[] =
    " PyTorch's indices were the same as torch's in every round.";

bool HasPyTorch(const SamplerReport& report) {
  for (const DrawRows& rows : report.sizes) {
    for (const DrawRow& row : rows.rows) {
      if (row.subject == DrawSubject::kPyTorch) return true;
    }
  }
  return false;
}

std::string Milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  return absl::StrFormat("%.*f", ms < 10 ? 3 : ms < 1000 ? 1 : 0, ms);
}

// Three digits, or all of a large number.
std::string Short(double value) {
  return absl::StrFormat("%.*f", value < 10 ? 2 : value < 100 ? 1 : 0, value);
}

std::string Line(absl::string_view size, absl::string_view what,
                 absl::string_view rounds, absl::string_view median,
                 absl::string_view min, absl::string_view max,
                 absl::string_view speed, absl::string_view table,
                 absl::string_view peer) {
  return absl::StrFormat("%17s  %-8s%7s%12s%12s%12s%12s%8s%8s\n", size, what,
                         rounds, median, min, max, speed, table, peer);
}

std::string FormatRow(const std::string& size, int rounds, const DrawRow& row) {
  return Line(
      size, Name(row.subject), absl::StrCat(rounds), Milliseconds(row.median),
      Milliseconds(row.min), Milliseconds(row.max),
      row.indices_per_second ? Short(*row.indices_per_second / 1e6) : "-",
      row.table_ratio ? Short(*row.table_ratio) : "-",
      row.torch_ratio ? Short(*row.torch_ratio) : "-");
}

std::string FormatBar(const Bar& bar) {
  return absl::StrCat(
      "bar: ", bar.what, ", ", bar.at_most ? "at most " : "at least ",
      bar.needed, " ", bar.unit, ": ",
      bar.value
          ? absl::StrCat(Short(*bar.value), bar.Met() ? ": met" : ": NOT met")
          : "not measured",
      "\n");
}

}  // namespace

std::string FormatCount(int64_t count) {
  std::string text = absl::StrCat(count);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string FormatSamplerHeading(const SamplerReport& report) {
  const Machine& machine = report.machine;
  std::string text = absl::StrCat(
      "one epoch's indices of n samples, for rank ", kDrawRank, " of ",
      kDrawWorldSize, ", shuffled, on one thread\n",
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
  if (!report.peer.empty()) {
    absl::StrAppend(&text, WrapText(report.peer, kTableColumns));
  }
  return absl::StrCat(text, "\n",
                      Line("n", "what", "rounds", "median ms", "min ms",
                           "max ms", "Mindex/s", "/table", "/torch"));
}

std::string FormatDrawRows(const DrawRows& rows) {
  std::string text;
  std::string first = FormatCount(rows.size);
  for (const DrawRow& row : rows.rows) {
    absl::StrAppend(&text, FormatRow(first, rows.rounds, row));
    first.clear();
  }
  return text;
}

std::string FormatKeyedRow(const KeyedRow& row) {
  return absl::StrCat(
      absl::StrFormat("%17s  %-8s", FormatCount(row.size), "keyed"),
      Short(row.median / 1e6), " Mindex/s (", Short(row.min / 1e6), " to ",
      Short(row.max / 1e6), ") in blocks of ", row.block, ", ",
      absl::StrFormat("%.0f ns for one, %.2f MiB\n",
                      1e9 * row.seconds_per_index,
                      static_cast<double>(row.memory_bytes) / (1 << 20)));
}

std::string FormatSamplerLegend(const SamplerReport& report) {
  std::string text = absl::StrCat(
      "\n",
      WrapText(absl::StrCat(kLegend, HasPyTorch(report) ? kSameIndices : ""),
               kTableColumns));
  if (!report.missing.empty()) {
    absl::StrAppend(&text, WrapText(absl::StrCat("PyTorch: not available: ",
                                                 report.missing),
                                    kTableColumns));
  }
  absl::StrAppend(&text, "\n");
  for (const Bar& bar : BarsOf(report)) absl::StrAppend(&text, FormatBar(bar));
  return text;
}

}  // namespace lockstep::benchmarks
