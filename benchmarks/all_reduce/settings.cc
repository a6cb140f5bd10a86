#include "benchmarks/all_reduce/settings.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

// The bytes of one turn's buffers, unless one message is larger: half of the
// second-level cache of a current core.
constexpr int64_t kTurnBytes = 512 << 10;
constexpr int kMaxIterations = 400;

// The same limits on a GPU. The buffers of large messages exceed its cache. The
// calls fit in a stream's queue of about a thousand kernels, however many
// kernels a call launches.
constexpr int64_t kGpuTurnBytes = 256 << 20;
constexpr int kMaxGpuIterations = 20;

// The largest --iterations. All samples of a turn are sent in one message.
constexpr int kIterationsLimit = 4096;
constexpr int kGpuIterationsLimit = 120;

constexpr int kWarmup = 5;
constexpr int kGpuWarmup = 3;  // Calls with each buffer.
constexpr int64_t kLargeMessage = 4 << 20;
constexpr int64_t kLargestMessage = int64_t{1} << 40;

template <typename Values>
auto WithNames(const Values& values) {
  NamedValues<std::decay_t<decltype(*std::begin(values))>> all;
  for (const auto value : values) all.emplace_back(Name(value), value);
  return all;
}

constexpr std::pair<const char*, Operation> kCollectives[] = {
    {"all_reduce", Operation::kAllReduce},
    {"reduce_scatter", Operation::kReduceScatter},
    {"all_gather", Operation::kAllGather},
    {"broadcast", Operation::kBroadcast},
    {"all_to_all", Operation::kAllToAll}};

constexpr std::pair<const char*, TeamKind> kPeers[] = {
    {"gloo", TeamKind::kGloo},
    {"mpi", TeamKind::kOpenMpi},
    {"nccl", TeamKind::kPlainNccl},
    {"oneccl", TeamKind::kOneCcl}};

bool RunsOnCommunicator(TeamKind kind) {
  return !IsPeer(kind) && !IsControl(kind);
}

}  // namespace

const char* Name(TeamKind kind) {
  constexpr const char* kNames[] = {"threads", "processes", "tcp",     "mpi",
                                    "nccl",    "Open MPI",  "Gloo",    "oneCCL",
                                    "NCCL",    "update",    "exchange"};
  return kNames[static_cast<size_t>(kind)];
}

bool IsControl(TeamKind kind) {
  return kind == TeamKind::kUpdate || kind == TeamKind::kExchange;
}

bool IsPeer(TeamKind kind) {
  return kind == TeamKind::kOpenMpi || kind == TeamKind::kGloo ||
         kind == TeamKind::kOneCcl || kind == TeamKind::kPlainNccl;
}

bool OnGpu(TeamKind kind) {
  return kind == TeamKind::kNccl || kind == TeamKind::kPlainNccl;
}

const char* Name(BufferKind kind) {
  return kind == BufferKind::kOrdinary ? "ordinary" : "group";
}

std::string Name(const Team& team) {
  if (RunsOnCommunicator(team.kind)) {
    return absl::StrCat(Name(team.kind), " ", Name(team.algorithm));
  }
  if (team.algorithm == Algorithm::kRing) return "NCCL_ALGO=Ring";
  return Name(team.kind);
}

std::string Name(const Subject& subject) {
  const std::string team = Name(subject.team);
  if (RunsOnCommunicator(subject.team.kind)) {
    return absl::StrCat(team, " ", Name(subject.buffers));
  }
  if (subject.peer_algorithm == 0) return team;
  return absl::StrCat(team, " ", PeerAlgorithm(subject));
}

absl::string_view PeerAlgorithm(const Subject& subject) {
  return PeerAlgorithms(
      subject.team.kind)[static_cast<size_t>(subject.peer_algorithm)];
}

std::span<const char* const> PeerAlgorithms(TeamKind kind) {
  // An index is Open MPI's number in coll_tuned_allreduce_algorithm.
  static constexpr const char* kOpenMpi[] = {
      "",     "linear",         "nonoverlapping", "recursive doubling",
      "ring", "segmented ring", "Rabenseifner"};
  static constexpr const char* kGloo[] = {"", "bcube", "halving-doubling"};
  // CCL_ALLREDUCE takes these names. The other algorithms for ranks without a
  // GPU (direct, rabenseifner, double_tree, 2d) were never the fastest.
  static constexpr const char* kOneCcl[] = {"", "nreduce", "recursive_doubling",
                                            "ring"};
  static constexpr const char* kNone[] = {""};
  if (kind == TeamKind::kOpenMpi) return kOpenMpi;
  if (kind == TeamKind::kGloo) return kGloo;
  if (kind == TeamKind::kOneCcl) return kOneCcl;
  return kNone;
}

bool StartsPerAlgorithm(TeamKind kind) { return kind == TeamKind::kOneCcl; }

const char* CollectiveName(Operation operation) {
  for (const auto& [name, each] : kCollectives) {
    if (each == operation) return name;
  }
  return Name(operation);
}

absl::StatusOr<std::vector<TeamKind>> ParseBackends(absl::string_view text) {
  return ParseNames<TeamKind>("--backend", text,
                              {{"threads", TeamKind::kThreads},
                               {"processes", TeamKind::kProcesses},
                               {"tcp", TeamKind::kTcp},
                               {"mpi", TeamKind::kMpi},
                               {"nccl", TeamKind::kNccl}});
}

absl::StatusOr<std::vector<TeamKind>> ParsePeers(absl::string_view text) {
  if (text.empty()) return std::vector<TeamKind>();
  return ParseNames<TeamKind>("--peers", text,
                              {std::begin(kPeers), std::end(kPeers)});
}

absl::StatusOr<std::vector<Operation>> ParseCollectives(
    absl::string_view text) {
  return ParseNames<Operation>(
      "--collective", text, {std::begin(kCollectives), std::end(kCollectives)});
}

absl::StatusOr<std::vector<Algorithm>> ParseAlgorithms(absl::string_view text) {
  return ParseNames("--algorithm", text, WithNames(kAllAlgorithms));
}

absl::StatusOr<std::vector<BufferKind>> ParseBuffers(absl::string_view text) {
  return ParseNames<BufferKind>(
      "--buffers", text,
      {{"ordinary", BufferKind::kOrdinary}, {"group", BufferKind::kGroup}});
}

absl::StatusOr<std::vector<DataType>> ParseTypes(absl::string_view text) {
  return ParseNames("--dtype", text, WithNames(kAllDataTypes));
}

absl::StatusOr<std::vector<bool>> ParsePlacements(absl::string_view text) {
  return ParseNames<bool>("--in_place", text,
                          {{"true", true}, {"false", false}});
}

absl::StatusOr<std::vector<int>> ParseWorldSizes(absl::string_view text) {
  std::vector<int> sizes;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    int size = 0;
    if (!absl::SimpleAtoi(item, &size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--world_size: '", item, "' is not a number of ranks"));
    }
    if (std::ranges::count(sizes, size) == 0) sizes.push_back(size);
  }
  return sizes;
}

absl::StatusOr<ReduceOp> ParseOperation(absl::string_view text) {
  return ParseName("--op", text, WithNames(kAllReduceOps));
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view flag,
                                   absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  absl::string_view digits = lower;
  const bool has_b = absl::ConsumeSuffix(&digits, "b");
  const bool has_i = has_b && absl::ConsumeSuffix(&digits, "i");
  int64_t unit = 1;
  if (absl::ConsumeSuffix(&digits, "k")) {
    unit = 1 << 10;
  } else if (absl::ConsumeSuffix(&digits, "m")) {
    unit = 1 << 20;
  } else if (absl::ConsumeSuffix(&digits, "g")) {
    unit = 1 << 30;
  }
  int64_t value = 0;
  const bool plain = std::all_of(digits.begin(), digits.end(),
                                 [](char c) { return '0' <= c && c <= '9'; });
  if (!plain || !absl::SimpleAtoi(digits, &value) || (has_i && unit == 1) ||
      value > std::numeric_limits<int64_t>::max() / unit) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": '", text, "' is not a number of bytes such as 4096, 4K, 64M"));
  }
  return value * unit;
}

absl::StatusOr<std::vector<int64_t>> MessageSizes(int64_t min_bytes,
                                                  int64_t max_bytes,
                                                  int64_t factor,
                                                  int64_t element_bytes) {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--min_bytes", min_bytes, element_bytes, kLargestMessage));
  if (max_bytes < min_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_bytes (", report::Bytes(max_bytes),
        ") is smaller than --min_bytes (", report::Bytes(min_bytes), ")"));
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--max_bytes", max_bytes, min_bytes, kLargestMessage));
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--factor", factor, 2, 1 << 20));
  std::vector<int64_t> sizes;
  for (int64_t bytes = min_bytes; bytes <= max_bytes; bytes *= factor) {
    const int64_t whole = bytes / element_bytes * element_bytes;
    if (sizes.empty() || sizes.back() != whole) sizes.push_back(whole);
  }
  return sizes;
}

namespace {

// Checks that all buffers are in one kind of memory, since a table shows one
// kind, and that GPU ranks support the settings.
absl::Status CheckMemoryKinds(const AllReduceSettings& settings) {
  const bool gpu = OnGpu(settings);
  for (const TeamKind backend : settings.backends) {
    if (OnGpu(backend) != gpu) {
      return absl::InvalidArgumentError(
          absl::StrCat("--backend=nccl cannot be combined with ", Name(backend),
                       ": its buffers are in GPU memory"));
    }
  }
  for (const auto& [name, peer] : kPeers) {
    if (std::ranges::count(settings.peers, peer) == 0) continue;
    if (OnGpu(peer) == gpu) continue;
    return absl::InvalidArgumentError(
        gpu ? absl::StrCat("--peers=", name,
                           " needs ranks on the CPU, not --backend=nccl")
            : "--peers=nccl needs --backend=nccl");
  }
  if (gpu && std::ranges::count(settings.algorithms, Algorithm::kTree) > 0) {
    return absl::InvalidArgumentError(
        "--algorithm: tree is not supported with --backend=nccl");
  }
  const auto ranks = static_cast<unsigned>(settings.world_size);
  if (gpu && settings.op == ReduceOp::kAverage && !std::has_single_bit(ranks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--op: NCCL's avg is a sum of products with 1/", ranks,
                     ", which is exact only for powers of two"));
  }
  return absl::OkStatus();
}

}  // namespace

bool OnGpu(const AllReduceSettings& settings) {
  return OnGpu(settings.backends[0]);
}

std::vector<int64_t> SizesOf(const AllReduceSettings& settings,
                             Operation operation) {
  const bool whole =
      operation == Operation::kAllReduce || operation == Operation::kBroadcast;
  const int64_t unit =
      SizeOf(settings.type) * (whole ? 1 : settings.world_size);
  std::vector<int64_t> sizes;
  for (const int64_t bytes : settings.sizes) {
    const int64_t cut = std::max(bytes / unit, int64_t{1}) * unit;
    if (sizes.empty() || sizes.back() != cut) sizes.push_back(cut);
  }
  return sizes;
}

bool InPlace(const AllReduceSettings& settings, Operation operation,
             TeamKind kind) {
  if (operation == Operation::kBroadcast) return true;
  if (operation == Operation::kAllToAll) return false;
  if (operation == Operation::kReduceScatter && kind == TeamKind::kOpenMpi) {
    return false;
  }
  return settings.in_place;
}

absl::Status Validate(const AllReduceSettings& settings) {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--world_size", settings.world_size, 1, kMaxWorldSize));
  LOCKSTEP_RETURN_IF_ERROR(CheckMemoryKinds(settings));
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--rounds", settings.rounds, 0, 100000));
  const bool gpu = OnGpu(settings);
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--iterations", settings.iterations, 0,
                 gpu ? kGpuIterationsLimit : kIterationsLimit));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--warmup", settings.warmup,
                 gpu && settings.warmup >= 0 ? kGpuWarmup : -1, 100000));
  return CheckSeconds("--seconds", settings.seconds);
}

std::vector<Team> TeamsOf(const AllReduceSettings& settings) {
  std::vector<Team> teams;
  for (const TeamKind backend : settings.backends) {
    for (const Algorithm algorithm : settings.algorithms) {
      teams.push_back({backend, algorithm});
    }
  }
  for (const TeamKind peer : settings.peers) {
    teams.push_back({peer});
    if (peer == TeamKind::kPlainNccl) teams.push_back({peer, Algorithm::kRing});
  }
  // The memory of one host bounds only ranks that share it.
  const bool share_memory =
      std::ranges::count(settings.backends, TeamKind::kTcp) == 0;
  if (!OnGpu(settings) && share_memory) {
    teams.push_back({TeamKind::kUpdate});
    if (settings.has_cores) teams.push_back({TeamKind::kExchange});
  }
  return teams;
}

std::vector<Subject> SubjectsOf(const AllReduceSettings& settings) {
  std::vector<Subject> subjects;
  for (const Team& team : TeamsOf(settings)) {
    if (!RunsOnCommunicator(team.kind)) {
      const size_t algorithms = PeerAlgorithms(team.kind).size();
      for (size_t i = 0; i < algorithms; ++i) {
        subjects.push_back(
            {.team = team, .peer_algorithm = static_cast<int32_t>(i)});
      }
      continue;
    }
    const bool alike = OnGpu(team.kind) && team.algorithm != Algorithm::kDirect;
    for (const BufferKind buffers : settings.buffers) {
      subjects.push_back({team, buffers});
      if (alike) break;
    }
  }
  return subjects;
}

int TimedIterations(const AllReduceSettings& settings, int64_t bytes) {
  if (settings.iterations > 0) return settings.iterations;
  const int64_t byte_limit = OnGpu(settings) ? kGpuTurnBytes : kTurnBytes;
  const int64_t most = OnGpu(settings) ? kMaxGpuIterations : kMaxIterations;
  return static_cast<int>(std::clamp<int64_t>(byte_limit / bytes, 1, most));
}

int WarmupIterations(const AllReduceSettings& settings, int64_t bytes,
                     int round) {
  if (OnGpu(settings)) {
    return (settings.warmup >= 0 ? settings.warmup : kGpuWarmup) *
           (TimedIterations(settings, bytes) + 1);
  }
  if (settings.warmup >= 0) return settings.warmup;
  if (bytes < kLargeMessage) return kWarmup;
  return round == 0 ? 1 : 0;
}

int64_t MemoryNeeded(const AllReduceSettings& settings, int64_t bytes) {
  const int iterations = TimedIterations(settings, bytes);
  int64_t needed = 0;
  for (const Subject& subject : SubjectsOf(settings)) {
    const TeamKind kind = subject.team.kind;
    // A peer's later algorithms use the memory of its first.
    if (subject.peer_algorithm > 0 && !StartsPerAlgorithm(kind)) continue;
    const bool apart =
        std::ranges::any_of(settings.collectives, [&](Operation operation) {
          return !InPlace(settings, operation, kind);
        });
    const int64_t message = bytes * (apart ? 2 : 1);
    // On a GPU, one extra call has buffers. Elsewhere, a peer reduces through
    // internal memory of the size of a message; Gloo's has twice that size.
    const int64_t own = kind == TeamKind::kGloo ? 2 * bytes : bytes;
    needed += OnGpu(kind) ? message : IsPeer(kind) ? own : 0;
    needed += message * iterations;
  }
  return needed * settings.world_size;
}

}  // namespace lockstep::benchmarks
