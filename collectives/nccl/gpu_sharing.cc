#include "collectives/nccl/gpu_sharing.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr int kAllowsSharing = 23000;  // NCCL 2.30.0.

// The thread blocks of one rank's kernels in NCCL at most. All ranks' must run
// at the same time, since they wait for each other.
constexpr int kMaxCtas = 32;

bool OnOneGpu(const RankPlace& a, const RankPlace& b) {
  return a.gpu_uuid == b.gpu_uuid;
}

bool InOneProcess(const RankPlace& a, const RankPlace& b) {
  return a.host == b.host && a.process == b.process;
}

// How many ranks the GPU with the most has.
int MostRanksOnOneGpu(std::span<const RankPlace> ranks) {
  int most = 0;
  for (const RankPlace& a : ranks) {
    const auto on_it = std::ranges::count_if(
        ranks, [&](const RankPlace& b) { return OnOneGpu(a, b); });
    most = std::max(most, static_cast<int>(on_it));
  }
  return most;
}

absl::Status CheckProcesses(std::span<const RankPlace> ranks,
                            int nccl_version) {
  for (size_t b = 0; b < ranks.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (!OnOneGpu(ranks[a], ranks[b]) || !InOneProcess(ranks[a], ranks[b])) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "ranks ", a, " and ", b,
          " are threads of one process that share a GPU: NCCL before 2.30 "
          "(here ",
          nccl_version / 10000, ".", nccl_version / 100 % 100,
          ") needs a process for each, since NCCL_HOSTID holds for a process"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GpuSharing> PlanGpuSharing(std::span<const RankPlace> ranks,
                                          int rank, int nccl_version) {
  const int most = MostRanksOnOneGpu(ranks);
  if (most <= 1) return GpuSharing{};
  if (nccl_version >= kAllowsSharing) {
    return GpuSharing{
        true,
        {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
         {"NCCL_NVLS_ENABLE", "0"},
         {"NCCL_MAX_CTAS", absl::StrCat(std::max(1, kMaxCtas / most))}}};
  }
  const absl::Status status = CheckProcesses(ranks, nccl_version);
  if (!status.ok()) return status;
  const RankPlace& own = ranks[rank];
  GpuSharing sharing = {
      true,
      {{"NCCL_HOSTID", absl::StrCat("lockstep-", absl::Hex(own.host), "-",
                                    absl::Hex(own.process))}}};
  if (std::ranges::all_of(ranks, [&](const RankPlace& other) {
        return other.host == own.host;
      })) {
    sharing.environment.push_back({"NCCL_SOCKET_IFNAME", "lo"});
  }
  return sharing;
}

}  // namespace lockstep
