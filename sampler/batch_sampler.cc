#include "sampler/batch_sampler.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "sampler/sampler.h"

namespace lockstep {

absl::StatusOr<BatchSampler> BatchSampler::Create(
    std::unique_ptr<ResumableSampler> sampler,
    const BatchSamplerOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBatchSize(options.batch_size));
  // Ranks must be able to stop between two batches.
  LOCKSTEP_RETURN_IF_ERROR(sampler->StateAfter(options.batch_size).status());
  const int64_t fewest = sampler->Counts().fewest;
  if (options.drop_last && fewest < options.batch_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "drop_last leaves no batch: a rank has ", fewest,
        " samples an epoch, below the batch_size of ", options.batch_size));
  }
  return BatchSampler(std::move(sampler), options);
}

BatchSampler::BatchSampler(std::unique_ptr<ResumableSampler> sampler,
                           const BatchSamplerOptions& options)
    : sampler_(std::move(sampler)), options_(options) {}

void BatchSampler::SetEpoch(int64_t epoch) {
  sampler_->SetEpoch(epoch);
  indices_.reset();
  step_ = 0;
}

absl::Status BatchSampler::BeginEpoch() {
  LOCKSTEP_ASSIGN_OR_RETURN(EpochIndices drawn, sampler_->Draw());
  indices_ = std::move(drawn);
  step_ = 0;
  return absl::OkStatus();
}

std::optional<std::span<const int64_t>> BatchSampler::NextBatch() {
  if (!indices_ || step_ == num_batches()) return std::nullopt;
  const int64_t begin = std::min(indices_->size(), step_ * options_.batch_size);
  batch_.resize(std::min(options_.batch_size, indices_->size() - begin));
  indices_->Read(begin, batch_);
  ++step_;
  return batch_;
}

int64_t BatchSampler::num_batches() const {
  const SampleCounts counts = sampler_->Counts();
  if (options_.drop_last) return counts.fewest / options_.batch_size;
  return counts.most / options_.batch_size +
         (counts.most % options_.batch_size != 0 ? 1 : 0);
}

absl::StatusOr<SamplerState> BatchSampler::State() const {
  return sampler_->StateAfter(
      std::min(step_ * options_.batch_size, sampler_->Counts().most));
}

absl::Status BatchSampler::Restore(const SamplerState& state) {
  LOCKSTEP_RETURN_IF_ERROR(sampler_->Restore(state));
  indices_.reset();
  step_ = 0;
  return absl::OkStatus();
}

}  // namespace lockstep
