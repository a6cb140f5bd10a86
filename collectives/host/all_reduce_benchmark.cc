// Times AllReduceSum of float32 between two ranks of each host backend:
//   bazel run //collectives/host:all_reduce_benchmark
// bus_bw is 2 (P-1)/P * bytes / time: what a link between two ranks carries.
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmark/benchmark.h"
#include "collectives/communicator.h"
#include "collectives/host/process_group.h"
#include "collectives/host/thread_group.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {
namespace {

// One call with a known answer. Leaves zeros, so that the sums of the timed
// calls stay finite.
absl::Status CheckAnswer(Communicator& communicator, std::span<float> data) {
  for (float& x : data) x = static_cast<float>(communicator.rank() + 1);
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduceSum(data));
  for (const float x : data) {
    if (x != 3.0f) return absl::DataLossError("wrong sum");
  }
  for (float& x : data) x = 0;
  return absl::OkStatus();
}

// What the other rank does: as many calls as the timed loop, and the checks.
absl::Status Follow(Communicator& communicator, int64_t count, int64_t calls) {
  std::vector<float> data(static_cast<size_t>(count));
  LOCKSTEP_RETURN_IF_ERROR(CheckAnswer(communicator, data));
  for (int64_t i = 0; i < calls; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduceSum(std::span(data)));
  }
  return CheckAnswer(communicator, data);
}

void Time(benchmark::State& state, Communicator& communicator) {
  const int64_t bytes = state.range(0);
  std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float));
  absl::Status status = CheckAnswer(communicator, data);
  for (auto _ : state) {
    status.Update(communicator.AllReduceSum(std::span(data)));
  }
  status.Update(CheckAnswer(communicator, data));
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
  state.counters["bus_bw"] = benchmark::Counter(
      static_cast<double>(bytes) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

void BM_Threads(benchmark::State& state) {
  auto group = CreateThreadGroup(2);
  if (!group.ok()) return state.SkipWithError("no group");
  const auto calls = static_cast<int64_t>(state.max_iterations);
  std::thread other([&] {
    if (!Follow(*(*group)[1], state.range(0) / 4, calls).ok()) {
      (*group)[1].reset();  // Which the timed rank reports.
    }
  });
  Time(state, *(*group)[0]);
  other.join();
}

absl::StatusOr<std::unique_ptr<Communicator>> Join(const std::string& path,
                                                   int rank) {
  FileRendezvousOptions options;
  options.path = path;
  options.rank = rank;
  options.world_size = 2;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous,
                            OpenFileRendezvous(options));
  return JoinProcessGroup(*rendezvous);
}

void BM_Processes(benchmark::State& state) {
  const int file = memfd_create("rendezvous", MFD_CLOEXEC);
  const std::string path = absl::StrCat("/proc/", getpid(), "/fd/", file);
  const auto calls = static_cast<int64_t>(state.max_iterations);
  const pid_t child = fork();
  if (child == 0) {
    auto communicator = Join(path, 1);
    const bool ok = communicator.ok() &&
                    Follow(**communicator, state.range(0) / 4, calls).ok();
    _exit(ok ? 0 : 1);
  }
  {
    auto communicator = Join(path, 0);
    if (communicator.ok()) {
      Time(state, **communicator);
    } else {
      state.SkipWithError(communicator.status().ToString().c_str());
    }
  }
  waitpid(child, nullptr, 0);
  close(file);
}

BENCHMARK(BM_Threads)
    ->RangeMultiplier(16)
    ->Range(4 << 10, 64 << 20)
    ->UseRealTime();
BENCHMARK(BM_Processes)
    ->RangeMultiplier(16)
    ->Range(4 << 10, 64 << 20)
    ->UseRealTime();

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
