// Whole training steps of LeNet on one thread: forward, backward, update.
//   bazel run //models/cpu:lenet_benchmark
// items_per_second is images per second. DNNL_VERBOSE=1 in the environment
// lists every primitive with its implementation and time.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmark/benchmark.h"
#include "models/cpu/classifier.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"

namespace lockstep {
namespace {

constexpr float kLearningRate = 0.01f;

struct Samples {
  explicit Samples(int64_t n) : images(n * 28 * 28), labels(n) {
    for (size_t i = 0; i < images.size(); ++i) {
      images[i] = static_cast<float>(i * 37 % 101) / 101;
    }
    for (size_t i = 0; i < labels.size(); ++i) {
      labels[i] = static_cast<int32_t>(i * 7 % 10);
    }
  }
  Batch batch() const { return {images, labels}; }

  std::vector<float> images;
  std::vector<int32_t> labels;
};

void TrainingStep(benchmark::State& state) {
  SetComputeThreads(1);
  const int64_t n = state.range(0);
  const Samples samples(n);
  const std::unique_ptr<Model> model = CreateLeNet(/*seed=*/0);
  Parameters& parameters = model->parameters();
  double last_loss = 0;
  const auto step = [&] {
    const absl::StatusOr<Metrics> metrics = model->ForwardBackward(
        samples.batch(), 1.0f / static_cast<float>(n), [](int) {});
    last_loss = metrics.ok() ? metrics->loss_sum / n : std::nan("");
    SgdUpdate(parameters.values(), parameters.gradients(), kLearningRate);
  };
  step();
  const double first_loss = last_loss;
  for (auto _ : state) step();
  state.SetItemsProcessed(state.iterations() * n);
  // The answer is checked in the run that is timed: it starts near log(10) and
  // does not rise.
  if (!(std::abs(first_loss - std::log(10.0)) < 0.1) ||
      !(last_loss <= first_loss)) {
    state.SkipWithError("the loss is wrong");
  }
}
BENCHMARK(TrainingStep)
    ->Arg(128)
    ->Arg(256)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void Evaluation(benchmark::State& state) {
  SetComputeThreads(1);
  const int64_t n = state.range(0);
  const Samples samples(n);
  const std::unique_ptr<Model> model = CreateLeNet(/*seed=*/0);
  for (auto _ : state) {
    const absl::StatusOr<Metrics> metrics = model->Evaluate(samples.batch());
    if (!metrics.ok() || metrics->samples != n) {
      state.SkipWithError("evaluation failed");
    }
  }
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK(Evaluation)
    ->Arg(100)
    ->Arg(125)
    ->Arg(250)
    ->Arg(500)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();

namespace lockstep {

// Whole training steps of ResNet-18: forward, backward, update; batch 32.
//   bazel run //models/cpu:resnet18_benchmark
// items_per_second is images per second. DNNL_VERBOSE=1 in the environment
// lists every primitive with its implementation and time.
namespace {

constexpr int64_t kBatch = 32;
constexpr float kLearningRate = 0.01f;

struct Samples {
  Samples() : images(kBatch * 28 * 28), labels(kBatch) {
    for (size_t i = 0; i < images.size(); ++i) {
      images[i] = static_cast<float>(i * 37 % 101) / 101;
    }
    for (size_t i = 0; i < labels.size(); ++i) {
      labels[i] = static_cast<int32_t>(i * 7 % 10);
    }
  }
  Batch batch() const { return {images, labels}; }

  std::vector<float> images;
  std::vector<int32_t> labels;
};

void TrainingStep(benchmark::State& state) {
  SetComputeThreads(static_cast<int>(state.range(0)));
  const Samples samples;
  const std::unique_ptr<Model> model = CreateResNet18(/*seed=*/0);
  Parameters& parameters = model->parameters();
  double last_loss = 0;
  const auto step = [&] {
    const absl::StatusOr<Metrics> metrics =
        model->ForwardBackward(samples.batch(), 1.0f / kBatch, [](int) {});
    last_loss = metrics.ok() ? metrics->loss_sum / kBatch : std::nan("");
    SgdUpdate(parameters.values(), parameters.gradients(), kLearningRate);
  };
  step();
  const double first_loss = last_loss;
  for (auto _ : state) step();
  state.SetItemsProcessed(state.iterations() * kBatch);
  // The answer is checked in the run that is timed: it starts near log(10) and
  // falls.
  if (!(std::abs(first_loss - std::log(10.0)) < 0.3) ||
      !(last_loss < first_loss)) {
    state.SkipWithError("the loss is wrong");
  }
}
BENCHMARK(TrainingStep)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
