// The report's forms: keys, columns and words. Every number comes from the
// report.
#include "benchmarks/syncbn/document.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/results.h"
#include "benchmarks/syncbn/settings.h"
#include "benchmarks/syncbn/turn.h"
#include "models/networks/networks.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

using report::Cell;
using report::Chart;
using report::Counted;
using report::Milliseconds;
using report::Percent;
using report::Series;
using report::Significant;
using report::TextOrNull;
using report::Value;

Value SpreadData(const CallSpread& spread) {
  return {{"median", spread.median}, {"p25", spread.p25},
          {"p75", spread.p75},       {"min", spread.min},
          {"max", spread.max},       {"samples", spread.samples}};
}

Value OptionalSpread(const std::optional<CallSpread>& spread) {
  return spread.has_value() ? SpreadData(*spread) : Value();
}

Value SplitData(const CallSplit& split) {
  return {{"kernels", split.Kernels()},
          {"communication", split.communication},
          {"wait", split.wait},
          {"other", split.other}};
}

// A host whose time is this part of the GPU's time or more is treated as the
// slower of the two.
constexpr double kHostShare = 0.9;

// Returns the JSON key of a local batch norm in a pass.
const char* LocalKey(SyncBnSubject local) {
  return local == SyncBnSubject::kLocal ? "local" : "own_local";
}

Value PassData(const PassReport& pass) {
  return {{"local", OptionalSpread(pass.local)},
          {"own_local", SpreadData(pass.own_local)},
          {"faster_local", LocalKey(pass.FasterLocal())},
          {"sync", SpreadData(pass.sync)},
          {"torch", OptionalSpread(pass.torch)},
          {"torch_sync", OptionalSpread(pass.torch_sync)},
          {"message", pass.message},
          {"ratio", pass.Ratio()},
          {"beyond", pass.Beyond()},
          {"torch_ratio", pass.ToTorch()},
          {"torch_sync_ratio", pass.ToTorchSync()},
          {"split", SplitData(pass.split)},
          {"timers", pass.timers}};
}

Value KernelsData(const LayerReport& layer) {
  Value kernels = Value::Array();
  for (const KernelReport& kernel : layer.kernels) {
    kernels.Add(Value{{"kernel", Name(kernel.kernel)},
                      {"seconds", kernel.seconds},
                      {"bytes", kernel.bytes},
                      {"bound_seconds", kernel.bound_seconds},
                      {"bound_fraction", kernel.Fraction()}});
  }
  return kernels;
}

Value LayerData(const LayerReport& layer) {
  Value passes = Value::Object();
  for (const PassReport& pass : layer.passes) {
    passes.Add(Name(pass.pass), PassData(pass));
  }
  return {{"set", Name(layer.shape.set)},
          {"shape", Name(layer.shape)},
          {"n", layer.shape.n},
          {"h", layer.shape.h},
          {"w", layer.shape.w},
          {"c", layer.shape.c},
          {"rounds", layer.rounds},
          {"tensor_bytes", layer.tensor_bytes},
          {"forward_message_bytes", layer.forward_message},
          {"backward_message_bytes", layer.backward_message},
          {"copy_bandwidth", layer.copy_bandwidth},
          {"host_seconds", layer.host_seconds},
          {"wrong", layer.wrong},
          {"passes", std::move(passes)},
          {"kernels", KernelsData(layer)}};
}

Value NetworkData(const SyncBnReport& report) {
  const std::optional<NetworkReport>& network = report.network;
  if (!network.has_value()) return Value();
  const TrainedNetwork& trained = report.settings.network;
  const NetworkInput& input = trained.input;
  return {{"model", trained.spec},
          {"image",
           std::vector<int64_t>{input.channels, input.height, input.width}},
          {"classes", input.classes},
          {"batch_norms_alone", report.settings.gpu},
          {"per_rank_batch", network->batch},
          {"rounds", network->rounds},
          {"local", SpreadData(network->local)},
          {"sync", SpreadData(network->sync)},
          {"ratio", SpreadData(network->ratio)},
          {"share", network->Share()},
          {"split", SplitData(network->split)},
          {"timers", network->timers},
          {"messages", network->messages},
          {"message_bytes", network->message_bytes},
          {"wrong", network->wrong}};
}

Value SettingsData(const SyncBnSettings& settings) {
  return {{"world_size", settings.world_size},
          {"backend", BackendName(settings)},
          {"threads_per_rank", 1},
          {"layout", Name(settings.layout)},
          {"dtype", Name(settings.type)},
          {"rounds", settings.rounds},
          {"seconds", settings.seconds},
          {"seed", settings.seed}};
}

Value DataOf(const SyncBnReport& report) {
  Value layers = Value::Array();
  for (const LayerReport& layer : report.layers) layers.Add(LayerData(layer));
  return {{"gpu", TextOrNull(report.gpu)},
          {"shared_gpu", report.shared_gpu},
          {"sm_clock_mhz", report.sm_mhz == 0 ? Value() : Value(report.sm_mhz)},
          {"settings", SettingsData(report.settings)},
          {"peer", TextOrNull(report.peer)},
          {"not_available", report.missing},
          {"layers", std::move(layers)},
          {"network", NetworkData(report)}};
}

std::string OrDash(const std::optional<CallSpread>& spread) {
  return spread.has_value() ? Milliseconds(spread->median) : "-";
}

std::string MiddleHalf(const CallSpread& spread) {
  return absl::StrCat(Milliseconds(spread.p25), "..", Milliseconds(spread.p75));
}

const char* ShortName(Pass pass) {
  return pass == Pass::kForward    ? "fwd"
         : pass == Pass::kBackward ? "bwd"
                                   : "both";
}

std::vector<report::Column> LayerColumns(bool gpu) {
  std::vector<report::Column> columns = {
      {.title = "shape", .width = 11, .left = true},
      {.title = "pass", .width = 4, .left = true},
      {.title = "local", .width = 6},
      {.title = "own", .width = 6},
      {.title = "SyncBN", .width = 6},
      {.title = "p25..p75", .width = 12},
      {.title = "ratio", .width = 5},
      {.title = "message", .width = 7},
      {.title = "beyond", .width = 6},
      {.title = "kern", .width = 4},
      {.title = "comm", .width = 4},
      {.title = "wait", .width = 4},
      {.title = "rest", .width = 4},
      {.title = "torch", .width = 6}};
  if (gpu) columns.push_back({.title = "torchS", .width = 6});
  return columns;
}

std::vector<Cell> PassCells(const std::string& shape, const PassReport& pass,
                            bool gpu) {
  const CallSplit& split = pass.split;
  const double sum = split.Sum();
  std::vector<Cell> cells = {shape,
                             ShortName(pass.pass),
                             OrDash(pass.local),
                             Milliseconds(pass.own_local.median),
                             Milliseconds(pass.sync.median),
                             MiddleHalf(pass.sync),
                             Significant(pass.Ratio(), 3),
                             Significant(1e3 * pass.message, 5),
                             Significant(pass.Beyond(), 3),
                             Percent(split.Kernels() / sum),
                             Percent(split.communication / sum),
                             Percent(split.wait / sum),
                             Percent(split.other / sum),
                             OrDash(pass.torch)};
  if (gpu) cells.push_back(OrDash(pass.torch_sync));
  return cells;
}

// Returns "of the bound: moments 100%, normalize 90%; copy 10.0 GB/s".
std::string BoundText(const LayerReport& layer) {
  std::string kernels;
  for (const KernelReport& kernel : layer.kernels) {
    const std::optional<double> fraction = kernel.Fraction();
    if (!fraction.has_value()) continue;
    absl::string_view name = Name(kernel.kernel);
    absl::ConsumePrefix(&name, "backward ");
    absl::StrAppend(&kernels, kernels.empty() ? "" : ", ", name, " ",
                    Percent(*fraction));
  }
  return absl::StrFormat("of the bound: %s; copy %.1f GB/s", kernels,
                         1e-9 * layer.copy_bandwidth);
}

void AddRows(const LayerReport& layer, bool gpu, report::Table& table) {
  std::string first = Name(layer.shape);
  for (const PassReport& pass : layer.passes) {
    table.rows.push_back(PassCells(first, pass, gpu));
    first.clear();
  }
  table.rows.push_back({"", BoundText(layer)});
}

std::string AboutSet(const LayerShape& shape) {
  const char* const what = shape.set == ShapeSet::kResNet18 ? "images of 28x28"
                           : shape.set == ShapeSet::kDetection
                               ? "a feature pyramid over images of "
                                 "800x1216"
                               : "images of 224x224";
  return absl::StrCat(what, ", ", shape.n, " on each rank; times in ms");
}

// Returns a series of bars that are stacked at every position.
Series BarsOfColor(std::string name, const char* color, const char* stack) {
  return {.name = std::move(name), .color = color, .stack = stack};
}

// Returns the parts of SyncBN, stacked up to its median.
std::vector<Series> PartSeries(const char* stack) {
  return {BarsOfColor("SyncBN: kernels", "blue", stack),
          BarsOfColor("SyncBN: communication", "orange", stack),
          BarsOfColor("SyncBN: wait", "yellow", stack),
          BarsOfColor("SyncBN: rest", "gray", stack)};
}

void AddParts(const CallSplit& split, double whole,
              std::vector<Series>& parts) {
  const double scale = whole / split.Sum();
  const double values[] = {split.Kernels(), split.communication, split.wait,
                           split.other};
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].values.push_back(values[i] * scale);
  }
}

Chart TimesChart(const std::vector<const LayerReport*>& layers) {
  Series local = BarsOfColor("local BN", "ideal", "local");
  Series own = BarsOfColor("own local BN", "dark", "own");
  Series torch = BarsOfColor("PyTorch, local", "red", "torch");
  std::vector<Series> parts = PartSeries("sync");
  Chart chart = {.title = "Forward and backward",
                 .x_title = "height x width x channels",
                 .y_title = "times the faster local BN",
                 .decimals = 3};
  const auto over = [](const std::optional<CallSpread>& spread, double unit) {
    return spread ? std::optional<double>(spread->median / unit) : std::nullopt;
  };
  for (const LayerReport* const layer : layers) {
    const PassReport& both = layer->passes[static_cast<size_t>(Pass::kBoth)];
    const double unit = both.Faster().median;
    chart.places.push_back(Name(layer->shape));
    local.values.push_back(over(both.local, unit));
    own.values.push_back(over(both.own_local, unit));
    AddParts(both.split, both.sync.median / unit, parts);
    torch.values.push_back(over(both.torch, unit));
  }
  chart.series = {local, own};
  chart.series.insert(chart.series.end(), parts.begin(), parts.end());
  chart.series.push_back(torch);
  return chart;
}

Chart BoundChart(const std::vector<const LayerReport*>& layers) {
  const std::pair<TimedKernel, const char*> kernels[] = {
      {TimedKernel::kMoments, "blue"},
      {TimedKernel::kNormalize, "green"},
      {TimedKernel::kBackwardReduce, "purple"},
      {TimedKernel::kBackwardInput, "orange"}};
  Chart chart = {.title = "Kernels of SyncBN",
                 .x_title = "height x width x channels",
                 .y_title = "of the copy's bound",
                 .percent = true,
                 .decimals = 1};
  for (const auto& [kernel, color] : kernels) {
    Series series = {.name = Name(kernel), .color = color};
    for (const LayerReport* const layer : layers) {
      series.values.push_back(
          layer->kernels[static_cast<size_t>(kernel)].Fraction());
    }
    chart.series.push_back(std::move(series));
  }
  for (const LayerReport* const layer : layers) {
    chart.places.push_back(Name(layer->shape));
  }
  return chart;
}

void AddLayerSections(const SyncBnReport& report, report::Document& document) {
  std::optional<ShapeSet> set;
  for (const LayerReport& layer : report.layers) {
    if (set != layer.shape.set) {
      set = layer.shape.set;
      document.sections.push_back(
          {.title = Name(*set),
           .about = AboutSet(layer.shape),
           .table = {.columns = LayerColumns(report.settings.gpu)}});
      std::vector<const LayerReport*> layers;
      for (const LayerReport& other : report.layers) {
        if (other.shape.set == *set) layers.push_back(&other);
      }
      document.sections.back().charts = {TimesChart(layers),
                                         BoundChart(layers)};
    }
    AddRows(layer, report.settings.gpu, document.sections.back().table);
  }
}

// Draws a step. On the CPU its kernels are part of the rest, which then is all
// computing.
Chart NetworkChart(const NetworkReport& network) {
  std::vector<Series> parts = PartSeries("step");
  AddParts(network.split, 1e3 * network.sync.median, parts);
  for (Series& part : parts) {
    part.values.insert(part.values.begin(), std::nullopt);
  }
  const bool kernels = network.split.Kernels() > 0;
  if (!kernels) {
    parts[3].name = "SyncBN: computing";
    parts[3].color = "blue";
  }
  Series own = BarsOfColor("own local BN", "dark", "step");
  own.values = {1e3 * network.local.median, std::nullopt};
  Chart chart = {.title = "A step",
                 .y_title = "ms a step",
                 .places = {"own local BN", "SyncBN"},
                 .decimals = 2,
                 .unit = " ms",
                 .series = {own}};
  if (kernels) chart.series.push_back(parts[0]);
  for (const size_t i : {3, 2, 1}) chart.series.push_back(parts[i]);
  return chart;
}

report::Section NetworkSection(const SyncBnSettings& settings,
                               const NetworkReport& network) {
  const double sum = network.split.Sum();
  const auto row = [](const char* name, const CallSpread& spread) {
    return std::vector<Cell>{name, Milliseconds(spread.median),
                             MiddleHalf(spread)};
  };
  return {
      .title = settings.network.spec,
      .about = absl::StrCat(
          settings.gpu ? "the batch norms alone of a step on " : "a step on ",
          Counted(network.batch, "image"), " of ",
          ImageName(settings.network.input), " on each of ",
          Counted(settings.world_size, "rank"),
          settings.gpu ? "; forward, then backward, as one sequence"
                       : "; forward, backward, sum of gradients"),
      .table = {.columns = {{.title = "batch norm", .left = true},
                            {.title = "ms a step"},
                            {.title = "p25..p75"}},
                .rows = {row("own local BN", network.local),
                         row("SyncBN", network.sync)}},
      .conclusion = absl::StrFormat(
          "SyncBN over local BN, the median of %s: %+.1f%% (p25..p75 "
          "%+.1f%%..%+.1f%%). Its %d messages, %d bytes of each rank: "
          "communication %.1f%%, waiting for the last rank %.1f%% of the step.",
          Counted(network.rounds, "round"), network.PercentOverLocal(),
          100 * (network.ratio.p25 - 1), 100 * (network.ratio.p75 - 1),
          network.messages, network.message_bytes,
          100 * network.split.communication / sum,
          100 * network.split.wait / sum),
      .charts = {NetworkChart(network)}};
}

std::vector<std::string> RemarksOn(const SyncBnReport& report) {
  std::vector<std::string> remarks;
  if (!report.gpu.empty()) {
    remarks.push_back(absl::StrCat(
        "GPU: ", report.gpu,
        report.sm_mhz == 0 ? "; its clock is not known"
                           : absl::StrCat("; its clock while it worked was ",
                                          report.sm_mhz, " MHz or more")));
  }
  if (report.shared_gpu) {
    remarks.push_back(
        "ranks share a GPU: answers are still checked, but times say "
        "nothing.");
  }
  std::string slow_host;
  for (const LayerReport& layer : report.layers) {
    const PassReport& both = layer.passes[static_cast<size_t>(Pass::kBoth)];
    if (layer.host_seconds < kHostShare * both.sync.median) continue;
    absl::StrAppend(&slow_host, slow_host.empty() ? "" : ", ",
                    Name(layer.shape));
  }
  if (!slow_host.empty()) {
    remarks.push_back(
        "times may be the host's, which took as long to queue SyncBN: " +
        slow_host);
  }
  if (!report.peer.empty()) remarks.push_back(report.peer);
  for (const std::string& missing : report.missing) {
    remarks.push_back("not measured: " + missing);
  }
  return remarks;
}

// Adds the bars of every shape that is large enough, for forward and backward
// together.
void AddGpuBars(const SyncBnReport& report, report::Document& document) {
  const auto add = [&](const LayerReport& layer, const char* what,
                       const char* unit, double needed,
                       std::optional<double> value) {
    document.bars.push_back({.what = what + Name(layer.shape),
                             .needed = needed,
                             .at_most = false,
                             .unit = unit,
                             .value = value});
  };
  std::string why_not = WhyNoBar(report);
  const bool any = why_not.empty();
  for (const LayerReport& layer : report.layers) {
    if (!any) continue;
    if (layer.copy_seconds < kLeastCopySeconds) {
      absl::StrAppend(&why_not,
                      why_not.empty() ? "a copy is too short: " : ", ",
                      Name(layer.shape));
      continue;
    }
    const PassReport& both = layer.passes[static_cast<size_t>(Pass::kBoth)];
    add(layer, "own local BN of ", "of the copy's bound", kLeastOfBound,
        layer.OwnOfBound());
    add(layer, "SyncBN of ", "times as fast as PyTorch's SyncBatchNorm",
        kLeastToTorchSync, both.ToTorchSync());
  }
  if (!report.layers.empty()) document.no_bars = why_not;
}

// Adds the bars for resnet18_d2l's shapes, forward and backward together, and
// for its step.
void AddBars(const SyncBnReport& report, report::Document& document) {
  const std::string why_not = WhyNoBar(report);
  for (const LayerReport& layer : report.layers) {
    if (layer.shape.set != ShapeSet::kResNet18 || !why_not.empty()) continue;
    const PassReport& both = layer.passes[static_cast<size_t>(Pass::kBoth)];
    const SyncBnSubject against = both.FasterLocal();
    document.bars.push_back({.what = "beyond of " + Name(layer.shape),
                             .needed = kMostBeyond,
                             .at_most = true,
                             .unit = against == SyncBnSubject::kLocal
                                         ? "times oneDNN's local BN"
                                         : "times our own local BN",
                             .value = both.Beyond()});
  }
  if (StepHasBar(report.settings) && why_not.empty()) {
    document.bars.push_back(
        {.what = "step of resnet18_d2l",
         .needed = kMostPercentOverLocal,
         .at_most = true,
         .unit = "percent over our own local BN",
         .value = report.network
                      ? std::optional(report.network->PercentOverLocal())
                      : std::nullopt,
         .decimals = 1});
  }
  document.no_bars = why_not;
}

std::vector<std::string> MethodOnGpus() {
  return {
      "Every round has a turn of each: local BN, own local BN, SyncBN, SyncBN "
      "with timers, its messages alone, a copy, PyTorch's two. Rounds begin "
      "with one after the other, and every second one goes backwards.",
      "The calls of a turn are queued on one stream of each rank, and timed by "
      "events between series of them; the host waits when all are queued. What "
      "the host queues too slowly, and PyTorch's does in Python, counts. The "
      "ranks meet before a turn.",
      "Calls take turns on as many sets of tensors as it takes to touch more "
      "than three times the GPU's second-level cache between two uses of the "
      "same memory: forward on all sets, then backward on all. So do the copy "
      "and PyTorch.",
      "Where a message is timed, the last rank to enter is the one that is in "
      "it for the shortest time: that time is communication, and what others "
      "are in it for longer is waiting.",
      "Before a turn outputs are overwritten; every element of y, dx, dweight "
      "and dbias of its last call is compared with a float64 computation on "
      "the host. PyTorch compares four channels of its last y."};
}

std::vector<std::string> Method() {
  return {
      "Every round has a turn of each: local BN, own local BN, SyncBN, SyncBN "
      "with timers, its messages alone, a copy, PyTorch. Rounds begin with one "
      "after the other, and every second one goes backwards, so a drift of the "
      "machine and what a turn leaves behind meet all of them alike.",
      "A turn is two pairs of calls, forward and backward, that do not count, "
      "then as many pairs as move 512 MiB, at most 100. Where that is just "
      "one, and for the network, whose call is a step, a turn is that one, and "
      "only in the first round one before it does not count. The ranks meet "
      "before every call and every copy; PyTorch's processes only begin a turn "
      "together. Each round's step with SyncBN is divided by that with local "
      "BN; the median of these ratios is compared with the bar.",
      "Before a turn of a layer its outputs are overwritten; after its last "
      "call every element of y, dx, dweight and dbias is compared with a "
      "float64 computation: on the rank's own batch for the local ones, on all "
      "ranks' for SyncBN. A copy is compared with its source. PyTorch compares "
      "four channels of its last y. What messages alone bring is not compared. "
      "After each turn of the network the gradients of its last step must be "
      "finite and have the same bits on every rank, and those of SyncBN with "
      "and without timers the same bits too."};
}

}  // namespace

std::vector<report::Term> SyncBnTerms() {
  return {
      {"local, own",
       "oneDNN's batch norm (on GPUs cuDNN's) and SyncBN's kernels, each over "
       "the rank's own batch."},
      {"local, own, SyncBN",
       "the median of a call's time on its slowest rank, in milliseconds."},
      {"p25..p75", "the middle half of SyncBN's times."},
      {"ratio", "SyncBN / the faster of local and own."},
      {"message",
       "SyncBN's message alone, if all ranks arrive at the same time, in "
       "milliseconds."},
      {"beyond", "(SyncBN - message) / the faster of local and own."},
      {"kern, comm, wait, rest",
       "shares of a SyncBN call: kernels; its message, once the last rank has "
       "entered it; waiting for that rank; everything else. They are measured "
       "with timers, in separate turns."},
      {"torch", "torch.nn.BatchNorm2d, local, in milliseconds."},
      {"of the bound",
       "the time of a kernel's bytes at the bandwidth of a copy through as "
       "much memory, over the kernel's time."}};
}

report::Document SyncBnDocument(const SyncBnReport& report, bool finished) {
  const SyncBnSettings& settings = report.settings;
  const int cores = report.origin.machine.cores;
  report::Document document = {
      .name = "lockstep.syncbn",
      .schema_version = 3,
      .title = "Lockstep SyncBN report",
      .about =
          absl::StrCat("batch norm, ", Counted(settings.world_size, "rank"),
                       ": ", BackendName(settings), ", one thread each; ",
                       Name(settings.type), " ", Name(settings.layout)),
      .origin = report.origin,
      .facts = {{"Ranks",
                 absl::StrCat(settings.world_size, " ", BackendName(settings),
                              ", 1 thread each")}},
      .method = settings.gpu ? MethodOnGpus() : Method()};
  if (settings.world_size > cores) {
    document.notes.push_back(absl::StrCat(
        Counted(settings.world_size, "rank"), " on ", Counted(cores, "core"),
        " take turns: their numbers say little."));
  }
  AddLayerSections(report, document);
  if (report.network.has_value()) {
    document.sections.push_back(NetworkSection(settings, *report.network));
  }
  if (!finished) return document;
  document.data = DataOf(report);
  if (!report.layers.empty()) {
    document.terms = SyncBnTerms();
    if (settings.gpu) {
      document.terms.push_back(
          {"torchS",
           "torch.nn.SyncBatchNorm (on one rank only its kernels), in "
           "milliseconds."});
    }
  }
  document.remarks = RemarksOn(report);
  if (settings.gpu) {
    AddGpuBars(report, document);
  } else {
    AddBars(report, document);
  }
  return document;
}

}  // namespace lockstep::benchmarks
