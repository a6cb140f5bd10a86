#include "benchmarks/harness/timed_threads.h"

#include <barrier>
#include <cstddef>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "benchmarks/harness/rank_service.h"

namespace lockstep::benchmarks {

absl::StatusOr<TimedCalls> TimeTogether(
    size_t threads,
    absl::FunctionRef<TimedCalls(size_t thread, std::barrier<>& start)> time) {
  std::barrier<> start(static_cast<ptrdiff_t>(threads));
  std::vector<TimedCalls> results(threads);
  std::vector<std::thread> running;
  for (size_t i = 0; i < threads; ++i) {
    running.emplace_back([&, i] { results[i] = time(i, start); });
  }
  for (std::thread& thread : running) thread.join();
  return SlowestOf(results);
}

}  // namespace lockstep::benchmarks
