#include "collectives/launch/rank_placement.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/groups/rank_environment.h"

namespace lockstep {
namespace {

// Returns the number at the front of a file of the kernel; -1 if there is none.
int ReadTopology(int cpu, const char* name) {
  std::ifstream file(
      absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/", name));
  int value = -1;
  return file >> value ? value : -1;
}

// Returns one list of CPU numbers for each core.
std::vector<std::vector<int>> GroupByCore(const std::vector<Cpu>& cpus) {
  std::vector<std::vector<int>> cores;
  const Cpu* last = nullptr;
  for (const Cpu& cpu : cpus) {
    if (last == nullptr || cpu.package != last->package ||
        cpu.core != last->core) {
      cores.emplace_back();
    }
    cores.back().push_back(cpu.number);
    last = &cpu;
  }
  return cores;
}

bool IsName(absl::string_view entry) {
  for (const absl::string_view prefix : {"GPU-", "MIG-"}) {
    if (absl::StartsWith(entry, prefix)) return entry.size() > prefix.size();
  }
  return false;
}

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";

absl::Status Bad(absl::string_view value, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(kVariable, "=\"", value, "\" ", why));
}

absl::StatusOr<std::vector<std::string>> ParseVisible(
    const std::string& value) {
  std::vector<std::string> gpus;
  std::set<std::string> seen;
  if (absl::StripAsciiWhitespace(value).empty()) return gpus;
  for (absl::string_view item : absl::StrSplit(value, ',')) {
    item = absl::StripAsciiWhitespace(item);
    int number = 0;
    const bool is_number = absl::SimpleAtoi(item, &number);
    // CUDA ignores the entries from here on.
    if (is_number && number == -1) break;
    if (!IsName(item) && (!is_number || number < 0)) {
      return Bad(value, absl::StrCat("has an entry \"", item,
                                     "\" that is neither a number nor GPU-... "
                                     "nor MIG-..."));
    }
    gpus.push_back(is_number ? absl::StrCat(number) : std::string(item));
    if (!seen.insert(gpus.back()).second) {
      return Bad(value, absl::StrCat("has ", gpus.back(), " twice"));
    }
  }
  return gpus;
}

// Returns the GPUs that a value of CUDA_VISIBLE_DEVICES names; for nullopt, all
// GPUs of the host.
absl::StatusOr<std::vector<std::string>> VisibleGpus(
    const std::optional<std::string>& visible, int gpus_on_host) {
  if (visible.has_value()) return ParseVisible(*visible);
  std::vector<std::string> gpus;
  for (int i = 0; i < gpus_on_host; ++i) gpus.push_back(absl::StrCat(i));
  return gpus;
}

std::string Count(int number, absl::string_view noun) {
  return absl::StrCat(number, " ", noun, number == 1 ? "" : "s");
}

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

// Returns "0-3,8": ascending numbers, as the kernel writes lists of CPUs.
std::string FormatCpus(const std::vector<int>& cpus) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    runs.push_back(end - i == 1 ? absl::StrCat(cpus[i])
                                : absl::StrCat(cpus[i], "-", cpus[end - 1]));
    i = end;
  }
  return absl::StrJoin(runs, ",");
}

// Returns how many NVIDIA GPUs this process can see on the host: its
// /dev/nvidia<n>.
int GpusOnHost() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view number = name;
    int ignored = 0;
    if (absl::ConsumePrefix(&number, "nvidia") &&
        absl::SimpleAtoi(number, &ignored)) {
      ++count;
    }
  }
  return count;
}

absl::Status GiveGpus(const PlacementOptions& options,
                      std::vector<RankPlacement>& placements) {
  const absl::StatusOr<std::vector<std::string>> values =
      AssignGpus(static_cast<int>(placements.size()), options,
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

std::vector<Cpu> ReadUsableCpus() {
  std::vector<Cpu> cpus;
  for (const int number : AffinityCpus()) {
    Cpu cpu = {.number = number,
               .package = ReadTopology(number, "physical_package_id"),
               .core = ReadTopology(number, "thread_siblings_list")};
    if (cpu.core < 0) cpu.core = number;
    cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<CoreShare> ShareCores(std::vector<Cpu> cpus, int ranks) {
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tie(a.package, a.core, a.number) <
           std::tie(b.package, b.core, b.number);
  });
  std::vector<std::vector<int>> cores = GroupByCore(cpus);
  if (cores.size() < static_cast<size_t>(ranks)) {
    cores.clear();
    for (const Cpu& cpu : cpus) cores.push_back({cpu.number});
  }
  std::vector<CoreShare> shares(static_cast<size_t>(ranks));
  const size_t size = std::max<size_t>(cores.size() / shares.size(), 1);
  for (size_t i = 0; i < size * shares.size(); ++i) {
    CoreShare& share = shares[i / size];
    const std::vector<int>& core = cores[i % cores.size()];
    share.cpus.insert(share.cpus.end(), core.begin(), core.end());
    ++share.cores;
  }
  for (CoreShare& share : shares) {
    std::sort(share.cpus.begin(), share.cpus.end());
  }
  return shares;
}

absl::StatusOr<int> CountVisibleGpus() {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<std::string> gpus,
      VisibleGpus(LookUpProcessEnvironment(kVariable), GpusOnHost()));
  return static_cast<int>(gpus.size());
}

absl::StatusOr<std::vector<std::string>> AssignGpus(
    int ranks, const PlacementOptions& options,
    const std::optional<std::string>& visible, int gpus_on_host) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> gpus,
                            VisibleGpus(visible, gpus_on_host));
  const int64_t count = static_cast<int64_t>(gpus.size());
  const int64_t n = options.gpus_per_rank;
  const int64_t needed = options.share_gpus ? n : n * ranks;
  if (needed > count) {
    const std::string source =
        visible ? absl::StrCat("CUDA_VISIBLE_DEVICES=\"", *visible, "\" has ")
                : std::string("this host has ");
    return absl::InvalidArgumentError(absl::StrCat(
        Count(ranks, "rank"), " with ", Count(options.gpus_per_rank, "GPU"),
        " each: ", source, count,
        options.share_gpus || count == 0 ? "" : " (see --share_gpus)"));
  }
  std::vector<std::string> values;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> mine;
    for (int64_t i = 0; i < n; ++i)
      mine.push_back(gpus[(rank * n + i) % count]);
    values.push_back(absl::StrJoin(mine, ","));
  }
  return values;
}

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

std::string FormatBinding(const std::vector<RankPlacement>& placements,
                          int first_rank) {
  constexpr size_t kMostRanks = 8;
  std::vector<std::string> parts;
  for (size_t rank = 0; rank < placements.size(); ++rank) {
    if (placements[rank].cpus.empty()) return "";
    if (rank == kMostRanks) {
      parts.push_back(absl::StrCat(placements.size() - rank, " more"));
      break;
    }
    parts.push_back(absl::StrCat("rank ", first_rank + static_cast<int>(rank),
                                 ": ", FormatCpus(placements[rank].cpus)));
  }
  if (parts.empty()) return "";
  return absl::StrCat("lockstep: bound to cores: ", absl::StrJoin(parts, "; "));
}

}  // namespace lockstep
