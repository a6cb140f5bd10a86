// Our samplers under the clock.
#include "benchmarks/sampler_draw.h"

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
#include "sampler/distributed_sampler.h"
#include "sampler/paddle_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {
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

}  // namespace lockstep
