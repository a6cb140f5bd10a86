// A batch norm layer's forward and backward pass on the CPU, on the shapes of
// ResNet-18 on 28 x 28 images: ours, as SyncBatchNorm calls it but for the
// messages, against oneDNN's of the rank's own batch.
//   OMP_NUM_THREADS=1 bazel run //syncbn/cpu:batch_norm_cpu_benchmark
// Each iteration runs both, one after the other, so that each finds the caches
// as the other left them; the counters are the least over the iterations, since
// whatever else the machine does only adds, in microseconds: `ours` and
// `onednn` of the whole layer, the parts of ours, and `copy`, a copy of the
// activations. `ratio` is ours / onednn. Exits with 1 if they do not agree.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "benchmark/benchmark.h"
#include "collectives/collective.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/cpu/onednn_batch_norm.h"

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

// 64-byte aligned, as the models' activations are.
class Floats {
 public:
  explicit Floats(int64_t size, float value = 0)
      : size_(size),
        memory_(*CpuBatchNormKernels().Allocate(size * int64_t{4})) {
    std::fill_n(data(), size, value);
  }
  float* data() { return reinterpret_cast<float*>(memory_.get()); }
  Buffer buffer() { return {data(), size_, DataType::kFloat32}; }

 private:
  int64_t size_;
  std::shared_ptr<std::byte> memory_;
};

// What one layer works on.
struct Layer {
  Layer(const ActivationShape& shape, bool relu)
      : shape(shape),
        relu(relu),
        x(shape.size()),
        y(shape.size()),
        dy(shape.size()),
        dx(shape.size()),
        weight(shape.c, 1.25f),
        bias(shape.c, -0.25f),
        running_mean(shape.c),
        running_variance(shape.c, 1),
        dweight(shape.c),
        dbias(shape.c),
        saved(*CpuBatchNormKernels().Allocate(record().size_bytes())),
        own(*CpuBatchNormKernels().Allocate(record().size_bytes())),
        sums(2 * shape.c) {
    for (int64_t i = 0; i < shape.size(); ++i) {
      x.data()[i] = static_cast<float>(i * 37 % 101) / 101;
      dy.data()[i] = static_cast<float>(i * 41 % 103) / 103 - 0.5f;
    }
  }

  StatisticsRecord record() const { return {.channels = shape.c}; }
  Buffer saved_buffer() const {
    return {saved.get(), record().size_bytes(), DataType::kUInt8};
  }
  RunningStatistics running() {
    return {running_mean.buffer(), running_variance.buffer(), &batches};
  }

  ActivationShape shape;
  bool relu;
  Floats x, y, dy, dx, weight, bias, running_mean, running_variance, dweight,
      dbias;
  std::shared_ptr<std::byte> saved, own;
  Floats sums;
  int64_t batches = 0;
};

// One step of SyncBatchNorm of one rank, without its calls of the group.
absl::Status RunOurs(CpuBatchNormKernels& kernels, Layer& layer, Times& times) {
  const auto start = Clock::now();
  const MergeOptions merge = {.epsilon = 1e-5,
                              .weight_of_batch = 0.1,
                              .unbiased_running_variance = true,
                              .refuses_one_value = true};
  absl::Status status =
      kernels.ComputeMoments(layer.shape, layer.x.buffer(), layer.own.get());
  status.Update(kernels
                    .Merge({layer.record(), layer.own.get(), 1, merge,
                            layer.running(), layer.saved.get()})
                    .status());
  times.Note("moments", start);
  const auto normalize = Clock::now();
  status.Update(kernels.Normalize({.shape = layer.shape,
                                   .relu = layer.relu,
                                   .x = layer.x.buffer(),
                                   .residual = {},
                                   .weight = layer.weight.buffer(),
                                   .bias = layer.bias.buffer(),
                                   .saved = layer.saved.get(),
                                   .y = layer.y.buffer()}));
  times.Note("normalize", normalize);
  const BatchNormKernels::BackwardCall call = {
      .shape = layer.shape,
      .relu = layer.relu,
      .x = layer.x.buffer(),
      .y = layer.y.buffer(),
      .dy = layer.dy.buffer(),
      .weight = layer.weight.buffer(),
      .saved = layer.saved.get(),
      .sums = layer.sums.buffer(),
      .dweight = layer.dweight.buffer(),
      .dbias = layer.dbias.buffer(),
      .dx = layer.dx.buffer(),
      .dresidual = {}};
  const auto reduce = Clock::now();
  status.Update(kernels.BackwardReduce(call));
  times.Note("reduce", reduce);
  const auto input = Clock::now();
  status.Update(kernels.BackwardInput(call));
  times.Note("input", input);
  times.Note("ours", start);
  return status;
}

absl::Status RunOnednn(OnednnBatchNorm& norm, Layer& layer, Times& times) {
  const auto start = Clock::now();
  absl::Status status = norm.Forward({.shape = layer.shape,
                                      .training = true,
                                      .relu = layer.relu,
                                      .x = layer.x.buffer(),
                                      .residual = {},
                                      .weight = layer.weight.buffer(),
                                      .bias = layer.bias.buffer(),
                                      .running = layer.running(),
                                      .y = layer.y.buffer(),
                                      .saved = layer.saved_buffer()});
  times.Note("onednn_forward", start);
  status.Update(norm.Backward({.shape = layer.shape,
                               .training = true,
                               .relu = layer.relu,
                               .x = layer.x.buffer(),
                               .y = layer.y.buffer(),
                               .dy = layer.dy.buffer(),
                               .weight = layer.weight.buffer(),
                               .saved = layer.saved_buffer(),
                               .dweight = layer.dweight.buffer(),
                               .dbias = layer.dbias.buffer(),
                               .dx = layer.dx.buffer(),
                               .dresidual = {}},
                              [] {}));
  times.Note("onednn", start);
  return status;
}

// Whether both gave the same, but for rounding.
bool Agree(Floats& a, Floats& b) {
  for (int64_t i = 0; i < a.buffer().count; ++i) {
    const float scale = 1 + std::abs(b.data()[i]);
    if (!(std::abs(a.data()[i] - b.data()[i]) <= 1e-4f * scale)) return false;
  }
  return true;
}

void TrainingStep(benchmark::State& state, bool relu) {
  const ActivationShape shape = {.n = state.range(0),
                                 .c = state.range(1),
                                 .hw = state.range(2),
                                 .layout = Layout::kNhwc};
  BatchNormOptions options;
  options.channels = shape.c;
  CpuBatchNormKernels kernels;
  const std::unique_ptr<OnednnBatchNorm> norm =
      *OnednnBatchNorm::Create(options);
  Layer ours(shape, relu);
  Layer theirs(shape, relu);
  Times times;
  absl::Status status;
  for (auto _ : state) {
    const auto copy = Clock::now();
    std::memcpy(ours.y.data(), ours.x.data(),
                static_cast<size_t>(ours.x.buffer().size_bytes()));
    times.Note("copy", copy);
    status.Update(RunOurs(kernels, ours, times));
    status.Update(RunOnednn(*norm, theirs, times));
  }
  if (status.ok() && (!Agree(ours.y, theirs.y) || !Agree(ours.dx, theirs.dx) ||
                      !Agree(ours.dweight, theirs.dweight) ||
                      !Agree(ours.running_variance, theirs.running_variance))) {
    status = absl::DataLossError("ours and oneDNN's do not agree");
  }
  if (!status.ok()) {
    failed = true;
    state.SkipWithError(std::string(status.message()).c_str());
  }
  for (const auto& [name, time] : times.least()) state.counters[name] = time;
  state.counters["ratio"] =
      state.counters["ours"].value / state.counters["onednn"].value;
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

BENCHMARK_CAPTURE(TrainingStep, plain, false)->Apply(ResNet18Shapes);
BENCHMARK_CAPTURE(TrainingStep, relu, true)->Apply(ResNet18Shapes);

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
