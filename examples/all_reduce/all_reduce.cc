// Four ranks, which are threads of this process, sum an array. Rank r
// contributes r + 1.
#include <cstdio>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/groups/create_group.h"

namespace {

absl::Status Sum(lockstep::Communicator& rank) {
  std::vector<float> values(1000, static_cast<float>(rank.rank() + 1));
  if (absl::Status status = rank.AllReduce(std::span(values)); !status.ok()) {
    return status;
  }
  for (const float value : values) {
    if (value != 1 + 2 + 3 + 4) return absl::DataLossError("a wrong sum");
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  absl::StatusOr<lockstep::LocalRanks> ranks =
      lockstep::CreateGroup("threads", /*world_size=*/4);
  if (!ranks.ok()) {
    std::fprintf(stderr, "%s\n", ranks.status().ToString().c_str());
    return 1;
  }
  std::vector<absl::Status> statuses(ranks->size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks->size(); ++r) {
    threads.emplace_back([&, r] { statuses[r] = Sum(*(*ranks)[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
  std::printf("Each of %zu ranks holds the sum, 10.\n", ranks->size());
}
