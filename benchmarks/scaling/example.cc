// Numbers that are easy to check by hand.
#include "benchmarks/scaling/example.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "benchmarks/scaling/plan.h"
#include "benchmarks/scaling/report.h"
#include "benchmarks/scaling/round.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kCores = 2;

// Three rounds whose median has the given parts of a step, in milliseconds; the
// others are 1% slower and faster.
MeasuredConfiguration Measured(Configuration configuration, StepParts ms) {
  MeasuredConfiguration measured;
  measured.configuration = configuration;
  for (const double factor : {1.01, 1.0, 0.99}) {
    RoundSample round;
    const double scale = 1e-3 * factor;
    round.parts = {.compute = scale * ms.compute,
                   .exposed_communication = scale * ms.exposed_communication,
                   .data_wait = scale * ms.data_wait,
                   .rest = scale * ms.rest};
    const double seconds = scale * ms.Sum();
    round.images_per_second =
        static_cast<double>(configuration.global_batch) / seconds;
    round.step_seconds = {0.9 * seconds, 1.1 * seconds};
    round.imbalance = configuration.world_size == 1 ? 0 : 0.0125;
    round.kept_waiting = configuration.world_size > kCores ? 0.5 : 0.01;
    round.loss = 2.25;
    measured.rounds.push_back(round);
  }
  return measured;
}

ModeReport Mode(ScalingMode mode, std::vector<MeasuredConfiguration> measured) {
  ModeReport report = DeriveMode(mode, std::move(measured), kCores);
  report.limits = DescribeLimits(report, kCores);
  return report;
}

}  // namespace

ScalingReport ExampleReport() {
  ScalingReport report;
  report.settings.world_sizes = {1, 2, 4};
  report.settings.rounds = 3;
  report.settings.steps = 2;
  report.machine = {.cpu = "Example 9000",
                    .cores = kCores,
                    .memory_bytes = int64_t{16} << 30,
                    .system = "Linux 6.1"};
  report.command = "scaling --world_sizes=1,2,4 --rounds=3 --steps=2";
  report.commit = "0123456789abcdef0123456789abcdef01234567";
  report.created = "2024-05-31T16:20:00Z";
  const StepParts one = {.compute = 38, .data_wait = 1.5, .rest = 0.5};
  report.modes = {Mode(ScalingMode::kStrong,
                       {Measured({1, 256}, one),
                        Measured({2, 256}, {.compute = 22,
                                            .exposed_communication = 2,
                                            .data_wait = 0.75,
                                            .rest = 0.25}),
                        Measured({4, 256}, {.compute = 26,
                                            .exposed_communication = 12,
                                            .data_wait = 0.75,
                                            .rest = 1.25})}),
                  Mode(ScalingMode::kWeak,
                       {Measured({1, 256}, one),
                        Measured({2, 512}, {.compute = 44,
                                            .exposed_communication = 4,
                                            .data_wait = 1.5,
                                            .rest = 0.5}),
                        Measured({4, 1024}, {.compute = 78,
                                             .exposed_communication = 18,
                                             .data_wait = 3,
                                             .rest = 1})})};
  return report;
}

}  // namespace lockstep::benchmarks
