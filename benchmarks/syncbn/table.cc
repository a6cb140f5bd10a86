// Formatting only: every number comes from the report.
#include "benchmarks/syncbn/table.h"

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/data_types.h"
#include "benchmarks/syncbn/plan.h"
#include "report/terminal.h"

namespace lockstep::benchmarks {
namespace {

constexpr char kColumns[] =
    "local: oneDNN's batch norm (on GPUs cuDNN's), own: SyncBN's kernels, each "
    "over the rank's own batch. local, own, SyncBN: milliseconds of a call, as "
    "long as on its slowest rank, the median; p25..p75: the middle half of "
    "SyncBN's. ratio: SyncBN / the faster of local and own. message: its "
    "message alone, of ranks that arrive together, in microseconds. beyond: "
    "(SyncBN - message) / the faster of local and own. kern, comm, wait, rest: "
    "shares of a SyncBN call in kernels, in its message from when the last "
    "rank has entered it, in waiting for that rank, and in neither; measured "
    "with timers, in turns of their own. torch: torch.nn.BatchNorm2d, local, "
    "in milliseconds. of the bound: the time that a kernel's bytes take at the "
    "bandwidth of a copy within as much memory, over its own.";

std::string Milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  const int digits = ms < 9.9995 ? 3 : ms < 99.995 ? 2 : ms < 999.95 ? 1 : 0;
  return absl::StrFormat("%.*f", digits, ms);
}

std::string Microseconds(double seconds) {
  const double us = 1e6 * seconds;
  return absl::StrFormat("%.*f", us < 1000 ? 1 : 0, us);
}

std::string Ratio(double ratio) {
  return absl::StrFormat("%.*f", ratio < 99.995 ? 2 : 0, ratio);
}

std::string Percent(double share) {
  return absl::StrFormat("%.0f%%", 100 * share);
}

std::string OptionalMilliseconds(const std::optional<CallSpread>& spread) {
  return spread.has_value() ? Milliseconds(spread->median) : "-";
}

std::string Line(absl::string_view shape, absl::string_view pass,
                 absl::string_view local, absl::string_view own,
                 absl::string_view sync, absl::string_view range,
                 absl::string_view ratio, absl::string_view message,
                 absl::string_view beyond, absl::string_view shares,
                 absl::string_view torch) {
  return absl::StrFormat("%-12s%-5s%7s%7s%7s  %-12s%6s%8s%7s%s%7s\n", shape,
                         pass, local, own, sync, range, ratio, message, beyond,
                         shares, torch);
}

std::string Shares(const CallSplit& split) {
  const double sum = split.Sum();
  return absl::StrFormat("%5s%5s%5s%5s", Percent(split.kernels / sum),
                         Percent(split.communication / sum),
                         Percent(split.wait / sum), Percent(split.other / sum));
}

absl::string_view ShortName(Pass pass) {
  return pass == Pass::kForward    ? "fwd"
         : pass == Pass::kBackward ? "bwd"
                                   : "both";
}

std::string FormatPass(const std::string& shape, const PassReport& pass) {
  return Line(
      shape, ShortName(pass.pass), OptionalMilliseconds(pass.local),
      Milliseconds(pass.own_local.median), Milliseconds(pass.sync.median),
      absl::StrCat(Milliseconds(pass.sync.p25), "..",
                   Milliseconds(pass.sync.p75)),
      Ratio(pass.Ratio()), Microseconds(pass.message), Ratio(pass.Beyond()),
      Shares(pass.split), OptionalMilliseconds(pass.torch));
}

std::string FormatMachine(const SyncBnReport& report) {
  const Machine& machine = report.machine;
  std::string text = WrapText(
      absl::StrCat(machine.cpu, ", ", machine.cores,
                   machine.cores == 1 ? " core, " : " cores, ",
                   absl::StrFormat(
                       "%.0f GiB, ",
                       static_cast<double>(machine.memory_bytes) / (1 << 30)),
                   machine.system, "; ", report.created),
      kTableColumns);
  if (!report.commit.empty()) {
    absl::StrAppend(&text, "commit ", report.commit, "\n");
  }
  return absl::StrCat(text, report.command, "\n");
}

// Whose it is.
absl::string_view LocalName(SyncBnSubject local) {
  return local == SyncBnSubject::kLocal ? "oneDNN's" : "our own";
}

std::string FormatBars(const SyncBnReport& report) {
  if (report.layers.empty()) return "";
  if (const std::string why = WhyNoBar(report); !why.empty()) {
    return absl::StrCat("\nno bar: ", why, ".\n");
  }
  std::string text = absl::StrCat(
      "\nbar: SyncBN beyond its message, forward and backward, is at most ",
      kMostBeyond, "x the faster local BN\n");
  for (const SyncBnBar& bar : BarsOf(report)) {
    absl::StrAppend(&text, "  ", Name(bar.shape), ": ", Ratio(bar.value), "x ",
                    LocalName(bar.against), bar.Met() ? ": met" : ": NOT met",
                    "\n");
  }
  return text;
}

}  // namespace

std::string FormatSyncBnHeading(const SyncBnReport& report) {
  const SyncBnSettings& settings = report.settings;
  std::string text = absl::StrCat(
      "batch norm, ", settings.world_size,
      settings.world_size == 1 ? " rank: " : " ranks: ", BackendName(settings),
      ", one thread each; ", Name(settings.type), " ", Name(settings.layout),
      "\n");
  if (settings.world_size > report.machine.cores) {
    absl::StrAppend(&text, settings.world_size, " ranks on ",
                    report.machine.cores,
                    report.machine.cores == 1 ? " core" : " cores",
                    " take turns: their numbers say little.\n");
  }
  return absl::StrCat(text, FormatMachine(report));
}

std::string FormatShapeSet(const LayerShape& shape) {
  return absl::StrCat(
      "\n", Name(shape.set), ", ", shape.n, shape.n == 1 ? " image" : " images",
      " on each rank\n",
      Line("shape", "pass", "local", "own", "SyncBN", "p25..p75", "ratio",
           "message", "beyond",
           absl::StrFormat("%5s%5s%5s%5s", "kern", "comm", "wait", "rest"),
           "torch"));
}

std::string FormatLayer(const LayerReport& layer) {
  std::string text;
  std::string first = Name(layer.shape);
  for (const PassReport& pass : layer.passes) {
    absl::StrAppend(&text, FormatPass(first, pass));
    first.clear();
  }
  std::string kernels;
  for (const KernelReport& kernel : layer.kernels) {
    const std::optional<double> fraction = kernel.Fraction();
    if (!fraction.has_value()) continue;
    absl::string_view name = Name(kernel.kernel);
    absl::ConsumePrefix(&name, "backward ");
    absl::StrAppend(&kernels, kernels.empty() ? "" : ", ", name, " ",
                    Percent(*fraction));
  }
  return absl::StrCat(
      text, absl::StrFormat("%12sof the bound: %s; copy %.1f GB/s\n", "",
                            kernels, 1e-9 * layer.copy_bandwidth));
}

std::string FormatNetwork(const SyncBnSettings& settings,
                          const NetworkReport& network) {
  const auto step = [](const char* name, const CallSpread& spread) {
    return absl::StrFormat("%-14s%9s ms a step  (%s..%s)\n", name,
                           Milliseconds(spread.median),
                           Milliseconds(spread.p25), Milliseconds(spread.p75));
  };
  const double sum = network.split.Sum();
  return absl::StrCat(
      "\nResNet-18, ", network.batch, network.batch == 1 ? " image" : " images",
      " of 28x28 on each of ", settings.world_size,
      settings.world_size == 1 ? " rank" : " ranks",
      ": forward, backward, sum of gradients\n",
      step("own local BN", network.local), step("SyncBN", network.sync),
      WrapText(
          absl::StrFormat(
              "SyncBN's share of the step: %.1f%%. Its %d messages, %d "
              "bytes of each rank: communication %.1f%%, waiting for the "
              "last rank %.1f%% of the step.",
              100 * network.Share(), network.messages, network.message_bytes,
              100 * network.split.communication / sum,
              100 * network.split.wait / sum),
          kTableColumns));
}

std::string FormatSyncBnLegend(const SyncBnReport& report) {
  std::string text = "\n";
  if (!report.layers.empty()) {
    absl::StrAppend(&text, SyncBnColumns());
  }
  if (!report.gpu.empty()) {
    absl::StrAppend(&text,
                    WrapText(absl::StrCat("GPU: ", report.gpu), kTableColumns));
  }
  if (report.shared_gpu) {
    absl::StrAppend(&text,
                    "ranks share a GPU: answers are checked as ever, and times "
                    "say nothing.\n");
  }
  if (!report.peer.empty()) {
    absl::StrAppend(&text, WrapText(report.peer, kTableColumns));
  }
  for (const std::string& missing : report.missing) {
    absl::StrAppend(&text, WrapText(absl::StrCat("not measured: ", missing),
                                    kTableColumns));
  }
  return absl::StrCat(text, FormatBars(report));
}

std::string SyncBnColumns() { return WrapText(kColumns, kTableColumns); }

}  // namespace lockstep::benchmarks
