#include "benchmarks/step/results.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/step/roofline.h"
#include "benchmarks/step/settings.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "report/document.h"

namespace lockstep::benchmarks {

Spread SpreadOf(std::span<const double> samples) {
  return {.median = Median(samples),
          .min = std::ranges::min(samples),
          .max = std::ranges::max(samples)};
}

void DeriveStep(StepResult& result) {
  for (StepRow& row : result.rows) {
    row.step = SpreadOf(row.seconds);
    row.images_per_second =
        static_cast<double>(result.one.batch) / row.step.median;
    std::vector<double> shares, ratios;
    for (size_t i = 0; i < row.seconds.size(); ++i) {
      if (i < result.peaks.size()) {
        shares.push_back(static_cast<double>(result.flops) /
                         (row.seconds[i] * result.peaks[i]));
      }
      ratios.push_back(row.seconds[i] / result.rows[0].seconds[i]);
    }
    if (!shares.empty()) row.peak_share = Median(shares);
    if (&row != &result.rows[0]) row.ratio = SpreadOf(ratios);
  }
}

const StepRow* FastestNewestPeer(const StepResult& result) {
  const StepRow* best = nullptr;
  for (const StepRow& row : result.rows) {
    if (row.newest &&
        (best == nullptr || row.step.median < best->step.median)) {
      best = &row;
    }
  }
  return best;
}

// Layers.
namespace {

std::string Size(const Shape& shape) {
  return absl::StrCat(shape.h, "x", shape.w);
}

std::string KindText(const Network& network, const OperationKind& kind) {
  const auto window = [](const auto& op) {
    return absl::StrCat(op.kernel, "x", op.kernel,
                        op.stride > 1 ? absl::StrCat("/", op.stride) : "");
  };
  const auto relu = [](bool is) { return is ? "+relu" : ""; };
  if (const auto* op = std::get_if<ConvolutionOp>(&kind)) {
    const int64_t size = network.parameters()[op->weight].shape[2];
    return absl::StrCat("conv ", size, "x", size,
                        op->stride > 1 ? absl::StrCat("/", op->stride) : "",
                        relu(op->relu));
  }
  if (const auto* op = std::get_if<LinearOp>(&kind)) {
    return absl::StrCat("linear", relu(op->relu));
  }
  if (const auto* op = std::get_if<BatchNormOp>(&kind)) {
    return absl::StrCat("batch norm", relu(op->relu));
  }
  if (const auto* op = std::get_if<PoolOp>(&kind)) {
    return absl::StrCat(op->maximum ? "max pool " : "average pool ",
                        window(*op));
  }
  if (const auto* op = std::get_if<AttentionOp>(&kind)) {
    return absl::StrCat("attention, ", report::Counted(op->heads, "head"));
  }
  constexpr const char* kOthers[] = {
      "",           "",     "", "",      "global pool",
      "layer norm", "gelu", "", "embed", "class token",
      "dropout",    "add"};
  static_assert(std::size(kOthers) == std::variant_size_v<OperationKind>);
  return kOthers[kind.index()];
}

std::string OperationText(const Network& network, int operation) {
  const Network::Operation& op = network.operations()[operation];
  const Shape& in = network.ShapeOf(op.inputs[0]);
  return absl::StrCat(
      KindText(network, op.kind),
      op.inputs.size() > 1 && std::holds_alternative<BatchNormOp>(op.kind)
          ? "+add"
          : "",
      ", ",
      in.c == op.output.c ? absl::StrCat(in.c)
                          : absl::StrCat(in.c, " to ", op.output.c),
      ", ",
      Size(in) == Size(op.output)
          ? Size(in)
          : absl::StrCat(Size(in), " to ", Size(op.output)));
}

}  // namespace

std::vector<LayerRow> LayersOf(const Network& network, const StepCase& one,
                               std::span<const std::string> chosen,
                               std::span<const double> forward_seconds,
                               std::span<const double> backward_seconds,
                               double peak, double copy) {
  std::vector<LayerRow> rows;
  std::vector<double> memory_seconds;
  for (size_t i = 0; i < network.operations().size(); ++i) {
    const std::string what = OperationText(network, static_cast<int>(i));
    const auto found = std::ranges::find_if(rows, [&](const LayerRow& row) {
      return row.what == what && row.chosen == chosen[i];
    });
    const auto at = static_cast<size_t>(found - rows.begin());
    if (found == rows.end()) {
      rows.push_back({.what = what,
                      .chosen = chosen[i],
                      .batch_norm = std::holds_alternative<BatchNormOp>(
                          network.operations()[i].kind)});
      memory_seconds.push_back(0);
    }
    LayerRow& row = rows[at];
    const OperationWork work =
        WorkOf(network, static_cast<int>(i), one.batch, one.type());
    row.count += 1;
    row.forward_seconds += forward_seconds[i];
    row.backward_seconds += backward_seconds[i];
    row.flops += work.forward_flops + work.backward_flops;
    row.forward_bytes += work.forward_bytes;
    row.backward_bytes += work.backward_bytes;
    for (const auto& [flops, bytes] :
         {std::pair(work.forward_flops, work.forward_bytes),
          std::pair(work.backward_flops, work.backward_bytes)}) {
      const double compute = static_cast<double>(flops) / peak;
      const double memory = static_cast<double>(bytes) / copy;
      row.bound_seconds += std::max(compute, memory);
      if (memory > compute) memory_seconds[at] += memory;
    }
    row.memory_bound = 2 * memory_seconds[at] > row.bound_seconds;
  }
  std::ranges::stable_sort(rows, [](const LayerRow& a, const LayerRow& b) {
    return a.forward_seconds + a.backward_seconds >
           b.forward_seconds + b.backward_seconds;
  });
  return rows;
}

}  // namespace lockstep::benchmarks
