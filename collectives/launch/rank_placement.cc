// Puts together what core_binding.h and gpu_assignment.h work out.
#include "collectives/launch/rank_placement.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "collectives/launch/core_binding.h"
#include "collectives/launch/gpu_assignment.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/launch/rank_process.h"
#include "collectives/usable_cores.h"

namespace lockstep {
namespace {

absl::Status BindCores(std::vector<RankPlacement>& placements) {
  const int ranks = static_cast<int>(placements.size());
  std::vector<Cpu> cpus = ReadUsableCpus();
  if (cpus.empty()) {
    return absl::InvalidArgumentError(
        "bind_cores: the kernel does not say which cores may be used");
  }
  std::vector<CoreShare> shares = ShareCores(std::move(cpus), ranks);
  const int quota = std::max(UsableCores() / ranks, 1);
  for (size_t rank = 0; rank < placements.size(); ++rank) {
    CoreShare& share = shares[rank];
    placements[rank].environment.push_back(
        {"OMP_NUM_THREADS", absl::StrCat(std::min(share.cores, quota))});
    placements[rank].cpus = std::move(share.cpus);
  }
  return absl::OkStatus();
}

absl::Status GiveGpus(const PlacementOptions& options,
                      std::vector<RankPlacement>& placements) {
  constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";
  const absl::StatusOr<std::vector<std::string>> values =
      AssignGpus({.ranks = static_cast<int>(placements.size()),
                  .gpus_per_rank = options.gpus_per_rank,
                  .share = options.share_gpus},
                 LookUpProcessEnvironment(kVariable), GpusOnHost());
  if (!values.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpus_per_rank=", options.gpus_per_rank, ": ",
                     values.status().message()));
  }
  for (size_t rank = 0; rank < placements.size(); ++rank) {
    placements[rank].environment.push_back({kVariable, (*values)[rank]});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<RankPlacement>> PlaceRanks(
    int ranks, const PlacementOptions& options) {
  if (options.gpus_per_rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gpus_per_rank=", options.gpus_per_rank, " is less than 0"));
  }
  if (options.share_gpus && options.gpus_per_rank == 0) {
    return absl::InvalidArgumentError("share_gpus needs gpus_per_rank");
  }
  std::vector<RankPlacement> placements(static_cast<size_t>(ranks));
  if (options.bind_cores) {
    LOCKSTEP_RETURN_IF_ERROR(BindCores(placements));
  } else {
    for (RankPlacement& placement : placements) {
      placement.environment.push_back({"OMP_NUM_THREADS", "1"});
    }
  }
  if (std::getenv("OMP_NUM_THREADS") != nullptr) {
    for (RankPlacement& placement : placements) placement.environment.clear();
  }
  if (options.gpus_per_rank > 0) {
    LOCKSTEP_RETURN_IF_ERROR(GiveGpus(options, placements));
  }
  return placements;
}

std::string FormatBinding(const std::vector<RankPlacement>& placements) {
  constexpr size_t kMostRanks = 8;
  std::vector<std::string> parts;
  for (size_t rank = 0; rank < placements.size(); ++rank) {
    if (placements[rank].cpus.empty()) return "";
    if (rank == kMostRanks) {
      parts.push_back(absl::StrCat(placements.size() - rank, " more"));
      break;
    }
    parts.push_back(
        absl::StrCat("rank ", rank, ": ", FormatCpus(placements[rank].cpus)));
  }
  if (parts.empty()) return "";
  return absl::StrCat("lockstep: bound to cores: ", absl::StrJoin(parts, "; "));
}

}  // namespace lockstep
