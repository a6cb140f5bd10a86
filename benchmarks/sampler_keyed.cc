// Reading a computed epoch.
#include "benchmarks/sampler_keyed.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/resident_growth.h"
#include "benchmarks/sampler_plan.h"
#include "sampler/distributed_sampler.h"
#include "sampler/epoch_indices.h"

namespace lockstep {
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

}  // namespace lockstep
