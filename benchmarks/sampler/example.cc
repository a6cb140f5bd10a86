// Made-up numbers.
#include "benchmarks/sampler/example.h"

#include <cstdint>

#include "benchmarks/sampler/plan.h"

namespace lockstep::benchmarks {

MeasuredEpoch ExampleEpoch() {
  return {.size = 1'281'167,
          .draws = {{.subject = DrawSubject::kTorch,
                     .seconds = {0.005, 0.003, 0.004},
                     .count = 160'146,
                     .checksum = 4'000'000'000u},
                    {.subject = DrawSubject::kPaddle,
                     .seconds = {0.008, 0.008, 0.009},
                     .count = 160'146,
                     .checksum = 2},
                    {.subject = DrawSubject::kPyTorch,
                     .seconds = {0.1, 0.09, 0.2},
                     .count = 160'146,
                     .checksum = 4'000'000'000u},
                    {.subject = DrawSubject::kTable,
                     .seconds = {0.002, 0.001, 0.002}}}};
}

SamplerReport ExampleReport() {
  SamplerReport report;
  report.settings.sizes = {1'281'167};
  report.machine = {.cpu = "Example CPU",
                    .cores = 2,
                    .memory_bytes = int64_t{24} << 30,
                    .system = "Linux 6.1"};
  report.command = "bazel run //benchmarks:sampler";
  report.commit = "0123456789abcdef";
  report.created = "2024-05-31T16:20:00Z";
  report.peer = "PyTorch 2.6.0 (python3)";
  report.sizes = {DeriveRows(ExampleEpoch())};
  report.keyed = DeriveKeyed({70e6, 80e6, 90e6}, {50e-9}, 256 << 10);
  return report;
}

}  // namespace lockstep::benchmarks
