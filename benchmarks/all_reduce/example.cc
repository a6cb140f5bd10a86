// Numbers that are easy to check by hand.
#include "benchmarks/all_reduce/example.h"

#include <cstdint>
#include <vector>

#include "benchmarks/all_reduce/plan.h"

namespace lockstep::benchmarks {
namespace {

// Samples of 0.5, 1, 1 and 2 times `seconds`.
MeasuredSubject Measured(const Subject& subject, double seconds) {
  return {subject, {seconds, 2 * seconds, seconds, seconds / 2}, 0};
}

}  // namespace

AllReduceReport ExampleAllReduceReport() {
  AllReduceReport report;
  AllReduceSettings& settings = report.settings;
  settings.buffers = {BufferKind::kGroup};
  settings.peers = {TeamKind::kOpenMpi, TeamKind::kGloo};
  settings.sizes = {4 << 10, 64 << 20};
  report.machine = {.cpu = "Example 9000",
                    .cores = 2,
                    .memory_bytes = int64_t{16} << 30,
                    .system = "Linux 6.1"};
  report.command = "allreduce --buffers=group --peers=mpi,gloo";
  report.commit = "0123456789abcdef0123456789abcdef01234567";
  report.created = "2024-05-31T16:20:00Z";
  report.notes = {"Something to know."};
  report.missing = {{TeamKind::kGloo, "it was not built"}};
  const Subject ours = {{TeamKind::kProcesses}, BufferKind::kGroup};
  const Subject mpi = {{TeamKind::kOpenMpi}};
  const Subject copy = {{TeamKind::kCopy}};
  for (const int64_t bytes : settings.sizes) {
    // A nanosecond for each byte; copies at 40 GB/s, read and written.
    const double seconds = 1e-9 * static_cast<double>(bytes);
    MeasuredSize measured;
    measured.bytes = bytes;
    measured.rounds = 4;
    measured.subjects = {Measured(ours, seconds / 8), Measured(mpi, seconds),
                         Measured(copy, 2 * seconds / 40)};
    if (bytes == 4 << 10) measured.subjects[1].wrong = 3;
    report.sizes.push_back(DeriveSize(settings, measured));
  }
  return report;
}

}  // namespace lockstep::benchmarks
