// Measures a batch norm layer's forward and backward pass on the CPU, with
// channels last and in blocks, on the shapes of ResNet-18 on 28 x 28 images.
// Our kernels run as SyncBatchNorm calls them, without its messages. They are
// compared with oneDNN's batch norm of the rank's own batch.
//   OMP_NUM_THREADS=1 bazel run //syncbn/cpu:batch_norm_cpu_benchmark
// Each iteration runs both, one after the other, so that each finds the caches
// as the other left them. The counters are in microseconds, and are the least
// over the iterations, since other work of the machine only adds time: `ours`
// and `onednn` for the whole layer, `forward` and `backward` for our passes,
// and `copy` for a copy of the activations. `ratio` is ours / onednn.
// `forward_share` and `backward_share` are the copy's time for the bytes that
// our pass must move, divided by our time: 1 would be the speed of a copy.
// Exits with 1 if the results do not agree.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "benchmark/benchmark.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/cpu/onednn_batch_norm.h"
#include "syncbn/testing/device_tensor.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

bool failed = false;

// The least time of each part, in microseconds, by the counter's name.
class Times {
 public:
  void Note(const std::string& name, Clock::time_point start) {
    const double time =
        std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    const auto [at, is_first] = least_.try_emplace(name, time);
    if (!is_first) at->second = std::min(at->second, time);
  }
  const std::map<std::string, double>& least() const { return least_; }

 private:
  std::map<std::string, double> least_;
};

// Returns the memory of one layer, 64-byte aligned as the models' activations
// are.
LayerTensors MakeLayer(const ActivationShape& shape) {
  const auto channels = static_cast<size_t>(shape.c);
  LayerTensors::Values values = {.x = {},
                                 .residual = {},
                                 .dy = {},
                                 .weight = std::vector(channels, 1.25),
                                 .bias = std::vector(channels, -0.25)};
  for (int64_t i = 0; i < shape.size(); ++i) {
    values.x.push_back(static_cast<double>(i * 37 % 101) / 101);
    // Keeps sums away from 0, where rounding decides whether ReLU passes a
    // gradient.
    values.residual.push_back(i * 29 % 97 < 48 ? -4 : 4);
    values.dy.push_back(static_cast<double>(i * 41 % 103) / 103 - 0.5);
  }
  return LayerTensors({.channels = shape.c}, shape, DataType::kFloat32, values);
}

// Runs one step of SyncBatchNorm without other ranks. own: memory for the
// batch's record; sums: [2, c].
absl::Status RunOurs(CpuBatchNormKernels& kernels, LayerTensors& layer,
                     const LayerCall& how, const DeviceRecords& own,
                     const Buffer& sums, Times& times) {
  const BatchNorm::ForwardBuffers forward = layer.ForwardBuffers(how);
  const BatchNormKernels::BackwardCall backward = {layer.BackwardBuffers(how),
                                                   sums};
  const auto start = Clock::now();
  absl::Status status = kernels.ForwardLocal(
      forward, MergeOptionsFor(layer.options, forward.running), own.data());
  times.Note("forward", start);
  const auto middle = Clock::now();
  status.Update(kernels.BackwardLocal(backward, [] {}));
  times.Note("backward", middle);
  times.Note("ours", start);
  return status;
}

absl::Status RunOnednn(OnednnBatchNorm& norm, LayerTensors& layer,
                       const LayerCall& how, Times& times) {
  const BatchNorm::ForwardBuffers forward = layer.ForwardBuffers(how);
  const BatchNorm::BackwardBuffers backward = layer.BackwardBuffers(how);
  const auto start = Clock::now();
  absl::Status status = norm.Forward(forward);
  times.Note("onednn_forward", start);
  status.Update(norm.Backward(backward, [] {}));
  times.Note("onednn", start);
  return status;
}

// Returns whether both results are the same, except for rounding.
bool Agree(const DeviceTensor& a, const DeviceTensor& b) {
  const std::vector<double> ours = a.Read();
  const std::vector<double> theirs = b.Read();
  for (size_t i = 0; i < ours.size(); ++i) {
    const double scale = 1 + std::abs(theirs[i]);
    if (!(std::abs(ours[i] - theirs[i]) <= 1e-4 * scale)) return false;
  }
  return true;
}

// Returns the time of the activations that a pass must move, at the copy's
// speed, divided by the pass's time. tensors: how many tensors it reads and
// writes, each once.
double ShareOfCopy(const Times& times, int tensors, const char* pass) {
  constexpr int kCopied = 2;
  return tensors * times.least().at("copy") / kCopied / times.least().at(pass);
}

void TrainingStep(benchmark::State& state, Layout layout,
                  const LayerCall& how) {
  const ActivationShape shape = {.n = state.range(0),
                                 .c = state.range(1),
                                 .hw = state.range(2),
                                 .layout = layout};
  CpuBatchNormKernels kernels;
  LayerTensors ours = MakeLayer(shape);
  LayerTensors theirs = MakeLayer(shape);
  const std::unique_ptr<OnednnBatchNorm> norm =
      *OnednnBatchNorm::Create(theirs.options);
  const DeviceRecords own({UnwrittenRecord(shape.c)});
  const DeviceTensor sums(DataType::kFloat32, 2 * shape.c);
  const Buffer x = ours.x.buffer();
  const Buffer y = ours.y.buffer();
  Times times;
  absl::Status status;
  for (auto _ : state) {
    const auto copy = Clock::now();
    std::memcpy(y.data, x.data, static_cast<size_t>(x.size_bytes()));
    times.Note("copy", copy);
    status.Update(RunOurs(kernels, ours, how, own, sums.buffer(), times));
    status.Update(RunOnednn(*norm, theirs, how, times));
  }
  if (status.ok() && (!Agree(ours.y, theirs.y) || !Agree(ours.dx, theirs.dx) ||
                      !Agree(ours.dweight, theirs.dweight) ||
                      !Agree(ours.variance, theirs.variance))) {
    status = absl::DataLossError("ours and oneDNN's do not agree");
  }
  if (!status.ok()) {
    failed = true;
    state.SkipWithError(std::string(status.message()).c_str());
  }
  for (const auto& [name, time] : times.least()) state.counters[name] = time;
  state.counters["ratio"] =
      state.counters["ours"].value / state.counters["onednn"].value;
  state.counters["forward_share"] =
      ShareOfCopy(times, 2 + how.residual, "forward");
  state.counters["backward_share"] =
      ShareOfCopy(times, 3 + how.relu + how.residual, "backward");
}

void ResNet18Shapes(benchmark::internal::Benchmark* benchmark) {
  for (int64_t n : {32, 64}) {
    benchmark->Args({n, 64, 28 * 28});
    benchmark->Args({n, 128, 14 * 14});
    benchmark->Args({n, 256, 7 * 7});
    benchmark->Args({n, 512, 4 * 4});
  }
  benchmark->ArgNames({"n", "c", "hw"})->UseRealTime();
  benchmark->Unit(benchmark::kMicrosecond);
}

constexpr LayerCall kPlain = {};
constexpr LayerCall kRelu = {.relu = true};
constexpr LayerCall kAddRelu = {.relu = true, .residual = true};

BENCHMARK_CAPTURE(TrainingStep, nhwc_plain, Layout::kNhwc, kPlain)
    ->Apply(ResNet18Shapes);
BENCHMARK_CAPTURE(TrainingStep, nhwc_relu, Layout::kNhwc, kRelu)
    ->Apply(ResNet18Shapes);
BENCHMARK_CAPTURE(TrainingStep, nhwc_add_relu, Layout::kNhwc, kAddRelu)
    ->Apply(ResNet18Shapes);
BENCHMARK_CAPTURE(TrainingStep, nchw16c_plain, Layout::kNchw16c, kPlain)
    ->Apply(ResNet18Shapes);
BENCHMARK_CAPTURE(TrainingStep, nchw16c_relu, Layout::kNchw16c, kRelu)
    ->Apply(ResNet18Shapes);
BENCHMARK_CAPTURE(TrainingStep, nchw16c_add_relu, Layout::kNchw16c, kAddRelu)
    ->Apply(ResNet18Shapes);

}  // namespace

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return failed ? 1 : 0;
}

}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
