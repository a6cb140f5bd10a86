#include "collectives/host/run_on_threads.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/thread_group.h"

namespace lockstep {

absl::Status RunOnThreads(
    int world_size, const GroupOptions& options,
    const std::function<absl::Status(Communicator&)>& fn) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::vector<std::unique_ptr<Communicator>> communicators,
      CreateThreadGroup(world_size, options));
  std::vector<absl::Status> statuses(communicators.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < communicators.size(); ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = fn(*communicators[rank]);
      communicators[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  absl::Status first;
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    if (!absl::IsUnavailable(status)) return status;
    first.Update(status);
  }
  return first;
}

}  // namespace lockstep
