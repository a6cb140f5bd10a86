// A user's own data loader that takes its samples from Lockstep's sampler: two
// epochs of eleven samples, over two ranks, in batches of two. Every sample is
// loaded once in each epoch, in the order of PyTorch's DistributedSampler.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sampler/batch_sampler.h"
#include "sampler/distributed_sampler.h"

namespace {

// Returns one rank's batches of a data set in memory.
class DataLoader {
 public:
  static absl::StatusOr<DataLoader> Create(std::span<const std::string> data,
                                           int rank, int world_size) {
    absl::StatusOr<lockstep::DistributedSampler> sampler =
        lockstep::DistributedSampler::Create(
            {.dataset_size = static_cast<int64_t>(data.size()),
             .world_size = world_size,
             .rank = rank,
             .seed = 7,
             .tail = lockstep::Tail::kKeep});
    if (!sampler.ok()) return sampler.status();
    absl::StatusOr<lockstep::BatchSampler> batches =
        lockstep::BatchSampler::Create(
            std::make_unique<lockstep::DistributedSampler>(*std::move(sampler)),
            {.batch_size = 2});
    if (!batches.ok()) return batches.status();
    return DataLoader(data, *std::move(batches));
  }

  // Begins an epoch. SetEpoch must come before each BeginEpoch: without it, a
  // second epoch would have the order of the first, and the sampler returns an
  // error.
  absl::Status BeginEpoch(int64_t epoch) {
    batches_.SetEpoch(epoch);
    return batches_.BeginEpoch();
  }

  std::optional<std::vector<std::string>> NextBatch() {
    const auto indices = batches_.NextBatch();
    if (!indices) return std::nullopt;
    std::vector<std::string> batch;
    for (const int64_t i : *indices) batch.push_back(data_[i]);
    return batch;
  }

 private:
  DataLoader(std::span<const std::string> data, lockstep::BatchSampler batches)
      : data_(data), batches_(std::move(batches)) {}

  std::span<const std::string> data_;
  lockstep::BatchSampler batches_;
};

absl::Status PrintEpochs(std::span<const std::string> data, int rank) {
  absl::StatusOr<DataLoader> loader =
      DataLoader::Create(data, rank, /*world_size=*/2);
  if (!loader.ok()) return loader.status();
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    if (absl::Status status = loader->BeginEpoch(epoch); !status.ok()) {
      return status;
    }
    std::printf("rank %d, epoch %d:", rank, static_cast<int>(epoch));
    while (const auto batch = loader->NextBatch()) {
      std::printf("  [");
      for (const std::string& sample : *batch)
        std::printf(" %s", sample.c_str());
      std::printf(" ]");
    }
    std::printf("\n");
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  const std::vector<std::string> data = {"ant",  "bee", "cat", "dog",
                                         "eel",  "fox", "gnu", "hen",
                                         "ibis", "jay", "koi"};
  for (int rank = 0; rank < 2; ++rank) {
    if (absl::Status status = PrintEpochs(data, rank); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
}
