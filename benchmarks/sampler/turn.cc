#include "benchmarks/sampler/turn.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/sampler/settings.h"
#include "sampler/distributed_sampler.h"
#include "sampler/permutation.h"
#include "sampler/sampler.h"

namespace lockstep::benchmarks {

// Timed draws of our samplers.
namespace {

template <typename T>
absl::StatusOr<std::unique_ptr<Sampler>> ToSampler(absl::StatusOr<T> sampler) {
  if (!sampler.ok()) return sampler.status();
  return std::make_unique<T>(*std::move(sampler));
}

absl::StatusOr<std::unique_ptr<Sampler>> MakeSampler(DrawSubject subject,
                                                     int64_t size) {
  if (subject == DrawSubject::kPaddle) {
    return ToSampler(PaddleSampler::Create({.dataset_size = size,
                                            .world_size = kDrawWorldSize,
                                            .rank = kDrawRank,
                                            .batch_size = kDrawBatchSize,
                                            .shuffle = true}));
  }
  return ToSampler(DistributedSampler::Create(
      {.dataset_size = size,
       .world_size = kDrawWorldSize,
       .rank = kDrawRank,
       .seed = kDrawSeed,
       .tail = subject == DrawSubject::kExact ? Tail::kKeep : Tail::kPad}));
}

}  // namespace

absl::StatusOr<DrawResult> DrawEpoch(DrawSubject subject, int64_t size) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Sampler> sampler,
                            MakeSampler(subject, size));
  const double start = SteadySeconds();
  sampler->SetEpoch(kDrawEpoch);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                            sampler->Indices());
  const double elapsed = SteadySeconds() - start;
  LOCKSTEP_RETURN_IF_ERROR(
      CheckIndices(indices, size, DrawnCounts(subject, size)));
  return DrawResult{.seconds = elapsed,
                    .count = static_cast<int64_t>(indices.size()),
                    .checksum = IndexChecksum(indices)};
}

uint32_t IndexChecksum(std::span<const int64_t> indices) {
  const std::span<const std::byte> bytes = std::as_bytes(indices);
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

IndexCounts DrawnCounts(DrawSubject subject, int64_t size) {
  const int64_t rest = size % kDrawWorldSize;
  const bool more =
      subject == DrawSubject::kExact ? rest > kDrawRank : rest > 0;
  IndexCounts counts = {.drawn = size / kDrawWorldSize + (more ? 1 : 0)};
  if (subject == DrawSubject::kPaddle && rest > 0) {
    counts.max_repeated =
        std::min<int64_t>(kDrawWorldSize - rest, counts.drawn / 2);
  }
  return counts;
}

absl::Status CheckIndices(std::span<const int64_t> indices, int64_t size,
                          const IndexCounts& counts) {
  if (std::ssize(indices) != counts.drawn) {
    return absl::DataLossError(
        absl::StrCat(indices.size(), " indices are drawn, not ", counts.drawn));
  }
  std::vector<bool> seen(static_cast<size_t>(size));
  int64_t repeated = 0;
  for (const int64_t index : indices) {
    if (index < 0 || index >= size) {
      return absl::DataLossError(
          absl::StrCat("index ", index, " is not one of ", size, " samples"));
    }
    const auto place = static_cast<size_t>(index);
    if (seen[place]) ++repeated;
    seen[place] = true;
  }
  if (repeated <= counts.max_repeated) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(repeated, " of ", indices.size(),
                                          " indices are repeated; at most ",
                                          counts.max_repeated, " can be"));
}

// Increments at places that are the hash of a counter.
namespace {

// The finalizer of MurmurHash3: two multiplications, which vectorise.
inline uint32_t Hash(uint32_t value) {
  value = (value ^ (value >> 16)) * 0x85ebca6bu;
  value = (value ^ (value >> 13)) * 0xc2b2ae35u;
  return value ^ (value >> 16);
}

void Update(int32_t* table, int64_t size) {
  std::array<uint32_t, 512> places;
  for (int64_t first = 0; first < size; first += places.size()) {
    for (uint32_t k = 0; k < places.size(); ++k) {
      const uint64_t hash = Hash(static_cast<uint32_t>(first) + k);
      places[k] = static_cast<uint32_t>((hash * size) >> 32);
    }
    const auto count = std::min<int64_t>(places.size(), size - first);
    for (int64_t k = 0; k < count; ++k) ++table[places[k]];
  }
}

}  // namespace

absl::StatusOr<double> TimeRandomUpdates(int64_t size) {
  const std::unique_ptr<int32_t[]> table(new (std::nothrow) int32_t[size]);
  if (table == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a table of ", size));
  }
  std::fill_n(table.get(), size, 0);
  const double start = SteadySeconds();
  Update(table.get(), size);
  const double elapsed = SteadySeconds() - start;
  const int64_t updates =
      std::accumulate(table.get(), table.get() + size, int64_t{0});
  if (updates == size) return elapsed;
  return absl::DataLossError(
      absl::StrCat(size - updates, " of ", size, " updates were lost"));
}

// The messages to torch_peer.py, and its answers.
absl::StatusOr<DrawResult> DrawWithPeer(TorchProcess& peer, int64_t size,
                                        const SamplerSettings& settings) {
  if (size >= kWideDrawSize && !MatchesAtEverySize(peer.version())) {
    return absl::FailedPreconditionError(
        absl::StrCat("before 2.6 it draws another order from ", kWideDrawSize,
                     " samples on"));
  }
  const int64_t needed = PyTorchMemory(size), free = AvailableMemory();
  if (needed > free) {
    return absl::FailedPreconditionError(
        absl::StrCat("it needs about ", needed >> 20,
                     " MiB for this size, and ", free >> 20, " MiB are free"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::string answer,
      peer.Ask(absl::StrCat(size, " ", kDrawWorldSize, " ", kDrawRank, " ",
                            kDrawSeed, " ", kDrawEpoch),
               absl::Now() + absl::Seconds(settings.timeout)));
  return ParseDrawAnswer(answer);
}

bool MatchesAtEverySize(const std::string& version) {
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  int major = 0, minor = 0;
  return parts.size() >= 2 && absl::SimpleAtoi(parts[0], &major) &&
         absl::SimpleAtoi(parts[1], &minor) &&
         (major > 2 || (major == 2 && minor >= 6));
}

absl::StatusOr<DrawResult> ParseDrawAnswer(const std::string& answer) {
  const std::vector<std::string> words = absl::StrSplit(answer, ' ');
  DrawResult result;
  if (words.size() == 4 && words[0] == "drew" &&
      absl::SimpleAtod(words[1], &result.seconds) &&
      std::isfinite(result.seconds) && result.seconds > 0 &&
      absl::SimpleAtoi(words[2], &result.count) && result.count > 0 &&
      absl::SimpleAtoi(words[3], &result.checksum)) {
    return result;
  }
  return NotUnderstood(answer);
}

// Reading a computed epoch.
namespace {

int64_t ReadIndex(const EpochIndices& indices, int64_t k) {
  int64_t index = 0;
  indices.Read(k, std::span(&index, 1));
  return index;
}

}  // namespace

absl::StatusOr<EpochIndices> DrawKeyed(int64_t size) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      DistributedSampler sampler,
      DistributedSampler::Create({.dataset_size = size,
                                  .world_size = kDrawWorldSize,
                                  .rank = kDrawRank,
                                  .seed = kDrawSeed,
                                  .permutation = Permutation::kKeyed}));
  sampler.SetEpoch(kDrawEpoch);
  return sampler.Draw();
}

absl::StatusOr<double> TimeKeyedBlocks(const EpochIndices& indices,
                                       double seconds) {
  constexpr int kBlocksAtOnce = 64;  // Between readings of the clock.
  std::vector<int64_t> block(std::min(kKeyedBlock, indices.size()));
  const auto length = static_cast<int64_t>(block.size());
  int64_t first = -length, read = 0;
  double elapsed = 0;
  const double start = SteadySeconds();
  while (elapsed < seconds) {
    for (int i = 0; i < kBlocksAtOnce; ++i, read += length) {
      first += length;
      if (first + length > indices.size()) first = 0;
      indices.Read(first, block);
    }
    elapsed = SteadySeconds() - start;
  }
  for (int64_t k = 0; k < length; ++k) {
    if (block[k] != ReadIndex(indices, first + k)) {
      return absl::DataLossError(absl::StrCat(
          "index ", first + k, " differs when it is read in a block"));
    }
  }
  return static_cast<double>(read) / elapsed;
}

double TimeKeyedIndex(const EpochIndices& indices) {
  constexpr int64_t kReads = 1 << 14;
  const double start = SteadySeconds();
  int64_t k = 0;
  for (int64_t i = 0; i < kReads; ++i) {
    // Each place depends on the previous index, so that reads do not overlap.
    k = (k + ReadIndex(indices, k)) % indices.size();
  }
  // k is used here, so that the compiler keeps the loop.
  asm volatile("" : : "r"(k));
  return (SteadySeconds() - start) / static_cast<double>(kReads);
}

absl::Status CheckKeyed(const EpochIndices& indices, int64_t size) {
  const int64_t head = std::min<int64_t>(indices.size(), 1'000'000);
  const int64_t tail = std::min(indices.size() - head, kKeyedBlock);
  std::vector<int64_t> sample(head + tail);
  const std::span<int64_t> all(sample);
  for (int64_t first = 0; first < head; first += kKeyedBlock) {
    indices.Read(first,
                 all.subspan(first, std::min(kKeyedBlock, head - first)));
  }
  indices.Read(indices.size() - tail, all.subspan(head));
  std::sort(sample.begin(), sample.end());
  if (sample.front() < 0 || sample.back() >= size) {
    return absl::DataLossError(
        absl::StrCat("an index is not one of ", size, " samples"));
  }
  const auto twice = std::adjacent_find(sample.begin(), sample.end());
  if (twice == sample.end()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("index ", *twice, " comes twice"));
}

absl::Status DrawAndReadKeyed(int64_t size) {
  LOCKSTEP_ASSIGN_OR_RETURN(const EpochIndices indices, DrawKeyed(size));
  return TimeKeyedBlocks(indices, /*seconds=*/0.05).status();
}

absl::StatusOr<int64_t> KeyedMemory(int64_t size) {
  return ResidentGrowth([] { return DrawAndReadKeyed(1000); },
                        [&] { return DrawAndReadKeyed(size); });
}

}  // namespace lockstep::benchmarks
