#include "benchmarks/step/bars.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/vector_unit.h"
#include "benchmarks/step/results.h"
#include "benchmarks/step/settings.h"
#include "models/cuda/precision.h"
#include "models/train/device.h"
#include "report/document.h"

namespace lockstep::benchmarks {

std::optional<BatchNormTimes> BatchNormTimesOf(const StepResult& result) {
  if (!result.copy) return std::nullopt;
  BatchNormTimes times;
  double forward_bytes = 0, backward_bytes = 0;
  for (const LayerRow& row : result.layers) {
    if (!row.batch_norm) continue;
    times.forward_seconds += row.forward_seconds;
    times.backward_seconds += row.backward_seconds;
    forward_bytes += static_cast<double>(row.forward_bytes);
    backward_bytes += static_cast<double>(row.backward_bytes);
  }
  const double copy = *result.copy;
  const double seconds = times.forward_seconds + times.backward_seconds;
  if (!(copy > 0) || !(times.forward_seconds > 0) ||
      !(times.backward_seconds > 0)) {
    return std::nullopt;
  }
  times.forward_share = forward_bytes / copy / times.forward_seconds;
  times.backward_share = backward_bytes / copy / times.backward_seconds;
  times.share = (forward_bytes + backward_bytes) / copy / seconds;
  if (result.far_copy) times.far_share = times.share * copy / *result.far_copy;
  return times;
}

namespace {

constexpr double kResNetBar = 1.5;
// The bar with AVX-512 counts on Winograd convolution; the bar without AVX-512
// is for direct convolution.
constexpr double kResNetBarWithoutAvx512 = 1.1;
constexpr double kLenetBar = 1.15;
constexpr double kVitBar = 1.05;
constexpr double kBatchNormPercent = 80;

// A case with bars, of one thread in float32.
struct BarCase {
  const char* spec;
  int64_t batch, channels, size;
  // The goal for ours / PyTorch in speed, with and without AVX-512.
  double needed, needed_without_avx512;
  bool batch_norm = false;  // Whether batch norm has a bar.
  bool memory = false;      // Whether memory has a bar.
};
constexpr BarCase kBarCases[] = {
    {"resnet18_d2l", 32, 1, 28, kResNetBar, kResNetBarWithoutAvx512, true},
    {"resnet18_d2l", 16, 1, 28, kResNetBar, kResNetBarWithoutAvx512, true},
    {"resnet34", 16, 3, 112, kResNetBar, kResNetBarWithoutAvx512, true, true},
    {"lenet", 256, 1, 28, kLenetBar, kLenetBar},
    {"vit_tiny_patch16_224", 16, 3, 112, kVitBar, kVitBar}};

std::string CaseText(const BarCase& bar) {
  return absl::StrFormat("%s, %d x %dx%dx%d", bar.spec, bar.batch, bar.channels,
                         bar.size, bar.size);
}

// Returns the result of that case; null if the run has none.
const StepResult* FindResult(const StepReport& report, const BarCase& bar) {
  for (const StepResult& result : report.results) {
    const StepCase& one = result.one;
    if (one.spec == bar.spec && one.batch == bar.batch &&
        one.input.channels == bar.channels && one.input.height == bar.size &&
        one.input.width == bar.size && one.threads == 1 &&
        one.precision == ConvolutionPrecision::kFloat32) {
      return &result;
    }
  }
  return nullptr;
}

// Returns our speed over that of the fastest of --python's PyTorch.
std::optional<double> SpeedOver(const StepResult& result) {
  const StepRow* const best = FastestNewestPeer(result);
  if (best == nullptr) return std::nullopt;
  return best->ratio->median;
}

// Returns our memory over the least of --python's PyTorch.
std::optional<double> MemoryShare(const StepResult& result) {
  std::optional<int64_t> least;
  for (const StepRow& row : result.rows) {
    if (row.newest && row.memory_bytes) {
      least = std::min(least.value_or(*row.memory_bytes), *row.memory_bytes);
    }
  }
  const std::optional<int64_t> ours = result.rows[0].memory_bytes;
  if (!least || !ours || *least <= 0) return std::nullopt;
  return static_cast<double>(*ours) / static_cast<double>(*least);
}

std::optional<double> BatchNormPercent(const StepResult& result) {
  const std::optional<BatchNormTimes> times = BatchNormTimesOf(result);
  if (!times) return std::nullopt;
  return 100 * times->share;
}

}  // namespace

std::vector<report::Bar> BarsOf(const StepReport& report) {
  if (report.settings.device == ComputeDevice::kCuda) return {};
  const std::string peer =
      report.newest.empty()
          ? "PyTorch"
          : report.newest.substr(0, report.newest.find_first_of(" +("));
  const bool avx512 = report.vector_unit == VectorUnit::kAvx512;
  std::vector<report::Bar> speeds, others;
  const auto add = [&](const BarCase& bar, std::vector<report::Bar>& bars,
                       report::Bar goal, const auto& measure) {
    const StepResult* const result = FindResult(report, bar);
    if (result != nullptr) goal.value = measure(*result);
    bars.push_back(goal);
  };
  for (const BarCase& bar : kBarCases) {
    add(bar, speeds,
        {.what = absl::StrCat("step of ", CaseText(bar)),
         .needed = avx512 ? bar.needed : bar.needed_without_avx512,
         .unit = "times as fast as " + peer},
        SpeedOver);
    if (bar.batch_norm) {
      add(bar, others,
          {.what = absl::StrCat("batch norm of ", CaseText(bar)),
           .needed = kBatchNormPercent,
           .unit = "percent of the copy's bound"},
          BatchNormPercent);
    }
    if (bar.memory) {
      add(bar, others,
          {.what = absl::StrCat("memory of ", CaseText(bar)),
           .needed = 1,
           .at_most = true,
           .unit = "times that of " + peer},
          MemoryShare);
    }
  }
  speeds.insert(speeds.end(), others.begin(), others.end());
  return speeds;
}

report::Term BarsTerm() {
  return {
      "bars",
      absl::StrCat(
          "goals for one thread in float32. A step: the time of the fastest "
          "PyTorch of --python over ours must be at least ",
          kResNetBar, " for the ResNets (", kResNetBarWithoutAvx512,
          " on a processor without AVX-512), ", kLenetBar, " for LeNet, ",
          kVitBar,
          " for ViT. Batch norm, with its addition and ReLU, in both "
          "directions must have at least ",
          kBatchNormPercent,
          "% of the speed of a copy that moves as many bytes, measured with "
          "--layers. The memory of ResNet-34 must be at most the least of "
          "the PyTorch of --python.")};
}

std::string VectorUnitRemark(VectorUnit unit) {
  return unit == VectorUnit::kAvx512
             ? absl::StrCat(
                   "The processor has AVX-512: the bar of a ResNet's step is ",
                   kResNetBar, ". Without AVX-512 it would be ",
                   kResNetBarWithoutAvx512, ".")
             : absl::StrCat(
                   "The processor has no AVX-512: the bar of a ResNet's step "
                   "is ",
                   kResNetBarWithoutAvx512, ", not ", kResNetBar, ".");
}

}  // namespace lockstep::benchmarks
