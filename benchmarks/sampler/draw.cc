// Our samplers under the clock.
#include "benchmarks/sampler/draw.h"

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/sampler/plan.h"
#include "sampler/distributed_sampler.h"
#include "sampler/paddle_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::benchmarks {
namespace {

template <typename T>
absl::StatusOr<std::unique_ptr<Sampler>> OnHeap(absl::StatusOr<T> sampler) {
  if (!sampler.ok()) return sampler.status();
  return std::make_unique<T>(*std::move(sampler));
}

absl::StatusOr<std::unique_ptr<Sampler>> MakeSampler(DrawSubject subject,
                                                     int64_t size) {
  if (subject == DrawSubject::kPaddle) {
    return OnHeap(PaddleSampler::Create({.dataset_size = size,
                                         .world_size = kDrawWorldSize,
                                         .rank = kDrawRank,
                                         .batch_size = kDrawBatchSize,
                                         .shuffle = true}));
  }
  return OnHeap(DistributedSampler::Create(
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
  const auto start = std::chrono::steady_clock::now();
  sampler->SetEpoch(kDrawEpoch);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                            sampler->Indices());
  const std::chrono::duration<double> elapsed =
      std::chrono::steady_clock::now() - start;
  LOCKSTEP_RETURN_IF_ERROR(
      CheckIndices(indices, size, DrawnCounts(subject, size)));
  return DrawResult{.seconds = elapsed.count(),
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
    counts.most_repeated =
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
  if (repeated <= counts.most_repeated) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(repeated, " of ", indices.size(),
                                          " indices are repeated, at most ",
                                          counts.most_repeated, " can be"));
}

// Reading a computed epoch.
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t ReadOne(const EpochIndices& indices, int64_t k) {
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
  constexpr int kBlocksAtOnce = 64;  // Between looks at the clock.
  std::vector<int64_t> block(std::min(kKeyedBlock, indices.size()));
  const auto length = static_cast<int64_t>(block.size());
  int64_t first = -length, read = 0;
  double elapsed = 0;
  const Clock::time_point start = Clock::now();
  while (elapsed < seconds) {
    for (int i = 0; i < kBlocksAtOnce; ++i, read += length) {
      first += length;
      if (first + length > indices.size()) first = 0;
      indices.Read(first, block);
    }
    elapsed = SecondsSince(start);
  }
  for (int64_t k = 0; k < length; ++k) {
    if (block[k] != ReadOne(indices, first + k)) {
      return absl::DataLossError(absl::StrCat(
          "index ", first + k, " differs when it is read in a block"));
    }
  }
  return static_cast<double>(read) / elapsed;
}

double TimeKeyedIndex(const EpochIndices& indices) {
  constexpr int64_t kReads = 1 << 14;
  const Clock::time_point start = Clock::now();
  int64_t k = 0;
  for (int64_t i = 0; i < kReads; ++i) {
    // Each place depends on the index before, as it does for who needs one.
    k = (k + ReadOne(indices, k)) % indices.size();
  }
  // k is used, so that the loop is not left out.
  asm volatile("" : : "r"(k));
  return SecondsSince(start) / static_cast<double>(kReads);
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
