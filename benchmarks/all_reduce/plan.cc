#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/turn.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {
namespace {

// Buffers of one turn, unless one message is larger: half of the second-level
// cache that a core of today has.
constexpr int64_t kTurnBytes = 512 << 10;
constexpr int kMostIterations = 400;

// Of --iterations: the samples of a turn travel in one message.
constexpr int kIterationsLimit = 4096;

constexpr int kWarmup = 5;
constexpr int64_t kLargeMessage = 4 << 20;
constexpr int64_t kLargestMessage = int64_t{1} << 40;

template <typename Values>
auto WithNames(const Values& values) {
  NamedValues<std::decay_t<decltype(*std::begin(values))>> all;
  for (const auto value : values) all.emplace_back(Name(value), value);
  return all;
}

bool RunsOnCommunicator(TeamKind kind) {
  return !IsPeer(kind) && kind != TeamKind::kCopy;
}

}  // namespace

const char* Name(TeamKind kind) {
  constexpr const char* kNames[] = {"threads",  "processes", "mpi",
                                    "Open MPI", "Gloo",      "copy"};
  return kNames[static_cast<size_t>(kind)];
}

bool IsPeer(TeamKind kind) {
  return kind == TeamKind::kOpenMpi || kind == TeamKind::kGloo;
}

const char* Name(BufferKind kind) {
  return kind == BufferKind::kOrdinary ? "ordinary" : "group";
}

std::string Name(const Subject& subject) {
  if (!RunsOnCommunicator(subject.team.kind)) return Name(subject.team.kind);
  return absl::StrCat(Name(subject.team.kind), " ",
                      Name(subject.team.algorithm), " ", Name(subject.buffers));
}

absl::StatusOr<std::vector<TeamKind>> ParseBackends(absl::string_view text) {
  return ParseNames<TeamKind>("--backend", text,
                              {{"threads", TeamKind::kThreads},
                               {"processes", TeamKind::kProcesses},
                               {"mpi", TeamKind::kMpi}});
}

absl::StatusOr<std::vector<TeamKind>> ParsePeers(absl::string_view text) {
  if (text.empty()) return std::vector<TeamKind>();
  return ParseNames<TeamKind>(
      "--peers", text,
      {{"gloo", TeamKind::kGloo}, {"mpi", TeamKind::kOpenMpi}});
}

absl::StatusOr<std::vector<Algorithm>> ParseAlgorithms(absl::string_view text) {
  return ParseNames("--algorithm", text, WithNames(kAllAlgorithms));
}

absl::StatusOr<std::vector<BufferKind>> ParseBuffers(absl::string_view text) {
  return ParseNames<BufferKind>(
      "--buffers", text,
      {{"ordinary", BufferKind::kOrdinary}, {"group", BufferKind::kGroup}});
}

absl::StatusOr<DataType> ParseType(absl::string_view text) {
  return ParseName("--dtype", text, WithNames(kAllDataTypes));
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

absl::Status Validate(const AllReduceSettings& settings) {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--world_size", settings.world_size, 1, kMaxWorldSize));
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--rounds", settings.rounds, 0, 100000));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--iterations", settings.iterations, 0, kIterationsLimit));
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--warmup", settings.warmup, -1, 100000));
  return CheckSeconds("--seconds", settings.seconds);
}

std::vector<Team> TeamsOf(const AllReduceSettings& settings) {
  std::vector<Team> teams;
  for (const TeamKind backend : settings.backends) {
    for (const Algorithm algorithm : settings.algorithms) {
      teams.push_back({backend, algorithm});
    }
  }
  for (const TeamKind peer : settings.peers) teams.push_back({peer});
  teams.push_back({TeamKind::kCopy});
  return teams;
}

std::vector<Subject> SubjectsOf(const AllReduceSettings& settings) {
  std::vector<Subject> subjects;
  for (const Team& team : TeamsOf(settings)) {
    if (!RunsOnCommunicator(team.kind)) {
      subjects.push_back({team});
      continue;
    }
    for (const BufferKind buffers : settings.buffers) {
      subjects.push_back({team, buffers});
    }
  }
  return subjects;
}

int TimedIterations(const AllReduceSettings& settings, int64_t bytes) {
  if (settings.iterations > 0) return settings.iterations;
  return static_cast<int>(
      std::clamp<int64_t>(kTurnBytes / bytes, 1, kMostIterations));
}

int WarmupIterations(const AllReduceSettings& settings, int64_t bytes,
                     int round) {
  if (settings.warmup >= 0) return settings.warmup;
  if (bytes < kLargeMessage) return kWarmup;
  return round == 0 ? 1 : 0;
}

int64_t MemoryNeeded(const AllReduceSettings& settings, int64_t bytes) {
  const int64_t copies = settings.in_place ? 1 : 2;
  const int64_t pool = bytes * copies * TimedIterations(settings, bytes);
  int64_t needed = 0;
  for (const Subject& subject : SubjectsOf(settings)) {
    // Peers reduce through memory of their own, as much as a message.
    if (IsPeer(subject.team.kind)) needed += bytes;
    needed += subject.team.kind == TeamKind::kCopy ? bytes * copies : pool;
  }
  return needed * settings.world_size;
}

}  // namespace lockstep::benchmarks
