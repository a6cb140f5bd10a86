// Whole training steps, forward, backward, update, and evaluations.
//   bazel run //models/train:training_step_benchmark
// items_per_second is images per second. DNNL_VERBOSE=1 in the environment
// lists every primitive with its implementation and time. The exit status is 1
// if a loss is wrong.
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

bool all_right = true;

void Fail(benchmark::State& state, const char* what) {
  all_right = false;
  state.SkipWithError(what);
}

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

// Steps on one batch of n samples. The answer is checked in the run that is
// timed: the loss starts within `near` of log(10) and falls.
void RunSteps(benchmark::State& state, Model& model, int64_t n, double near) {
  const Samples samples(n);
  Parameters& parameters = model.parameters();
  double last_loss = 0;
  const auto step = [&] {
    const absl::StatusOr<Metrics> metrics = model.ForwardBackward(
        samples.batch(), 1.0f / static_cast<float>(n), [](int) {});
    last_loss = metrics.ok() ? metrics->loss_sum / static_cast<double>(n)
                             : std::nan("");
    SgdUpdate(parameters.values(), parameters.gradients(),
              /*learning_rate=*/0.01f);
  };
  step();
  const double first_loss = last_loss;
  for (auto _ : state) step();
  state.SetItemsProcessed(state.iterations() * n);
  if (!(std::abs(first_loss - std::log(10.0)) < near) ||
      !(last_loss < first_loss)) {
    Fail(state, "the loss is wrong");
  }
}

void LeNetTrainingStep(benchmark::State& state) {
  SetComputeThreads(1);
  RunSteps(state, *CreateLeNet(/*seed=*/0), state.range(0), /*near=*/0.1);
}
BENCHMARK(LeNetTrainingStep)
    ->ArgName("batch")
    ->Arg(128)
    ->Arg(256)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void LeNetEvaluation(benchmark::State& state) {
  SetComputeThreads(1);
  const int64_t n = state.range(0);
  const Samples samples(n);
  const std::unique_ptr<Model> model = CreateLeNet(/*seed=*/0);
  for (auto _ : state) {
    const absl::StatusOr<Metrics> metrics = model->Evaluate(samples.batch());
    if (!metrics.ok() || metrics->samples != n) {
      Fail(state, "evaluation failed");
      break;
    }
  }
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK(LeNetEvaluation)
    ->ArgName("batch")
    ->Arg(100)
    ->Arg(125)
    ->Arg(250)
    ->Arg(500)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void ResNet18TrainingStep(benchmark::State& state) {
  SetComputeThreads(static_cast<int>(state.range(0)));
  RunSteps(state, *CreateResNet18(/*seed=*/0), /*n=*/32, /*near=*/0.3);
}
BENCHMARK(ResNet18TrainingStep)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return lockstep::all_right ? 0 : 1;
}
