// The samplers of sampler/ as subjects, and what is common to all checks.
#include "conformance/sampling/sampling_subject.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_property.h"
#include "sampler/batch_sampler.h"
#include "sampler/distributed_sampler.h"
#include "sampler/paddle_sampler.h"
#include "sampler/sampler.h"
#include "sampler/sampler_state.h"

namespace lockstep {
namespace {

class BatchSamplerSubject : public SamplingSubject {
 public:
  explicit BatchSamplerSubject(BatchSampler batches)
      : batches_(std::move(batches)) {}

  void SetEpoch(int64_t epoch) override { batches_.SetEpoch(epoch); }
  absl::Status BeginEpoch() override { return batches_.BeginEpoch(); }
  std::optional<std::vector<int64_t>> NextBatch() override {
    const std::optional<std::span<const int64_t>> batch = batches_.NextBatch();
    if (!batch.has_value()) return std::nullopt;
    return std::vector<int64_t>(batch->begin(), batch->end());
  }
  int64_t num_batches() const override { return batches_.num_batches(); }
  absl::StatusOr<SamplerState> State() const override {
    return batches_.State();
  }
  absl::Status Restore(const SamplerState& state) override {
    return batches_.Restore(state);
  }

 private:
  BatchSampler batches_;
};

absl::StatusOr<std::unique_ptr<ResumableSampler>> MakeDistributed(
    const SamplingCase& c, int rank) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      DistributedSampler sampler,
      DistributedSampler::Create(
          {.dataset_size = c.dataset_size,
           .world_size = c.world_size,
           .rank = rank,
           .shuffle = c.shuffle != Shuffle::kNone,
           .seed = c.seed,
           .tail = c.semantics == Semantics::kExact ? Tail::kKeep
                   : c.drop_tail                    ? Tail::kDrop
                                                    : Tail::kPad,
           .permutation = c.shuffle == Shuffle::kKeyed ? Permutation::kKeyed
                                                       : Permutation::kTorch,
           .repeated_draw = c.repeated_draw.value_or(RepeatedDraw::kRefuse)}));
  return std::make_unique<DistributedSampler>(std::move(sampler));
}

absl::StatusOr<std::unique_ptr<ResumableSampler>> MakePaddle(
    const SamplingCase& c, int rank) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      PaddleSampler sampler,
      PaddleSampler::Create(
          {.dataset_size = c.dataset_size,
           .world_size = c.world_size,
           .rank = rank,
           .batch_size = c.batch_size,
           .shuffle = c.shuffle != Shuffle::kNone,
           .repeated_draw = c.repeated_draw.value_or(RepeatedDraw::kAdvance)}));
  return std::make_unique<PaddleSampler>(std::move(sampler));
}

std::string BatchText(const Batches& batches, size_t step) {
  if (step >= batches.size()) return "no batch";
  if (batches[step].empty()) return "an empty batch";
  return absl::StrJoin(batches[step], " ");
}

}  // namespace

absl::StatusOr<std::unique_ptr<SamplingSubject>> MakeSubject(
    const SamplingCase& c, int rank) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto sampler, c.semantics == Semantics::kPaddle
                                              ? MakePaddle(c, rank)
                                              : MakeDistributed(c, rank));
  LOCKSTEP_ASSIGN_OR_RETURN(
      BatchSampler batches,
      BatchSampler::Create(std::move(sampler), {.batch_size = c.batch_size,
                                                .drop_last = c.drop_last}));
  return std::make_unique<BatchSamplerSubject>(std::move(batches));
}

absl::StatusOr<Batches> DrawEpoch(SamplingSubject& subject) {
  LOCKSTEP_RETURN_IF_ERROR(subject.BeginEpoch());
  Batches batches;
  LOCKSTEP_RETURN_IF_ERROR(DrawRest(subject, batches));
  return batches;
}

absl::Status DrawRest(SamplingSubject& subject, Batches& batches) {
  while (std::optional<std::vector<int64_t>> batch = subject.NextBatch()) {
    batches.push_back(*std::move(batch));
    LOCKSTEP_RETURN_IF_ERROR(CheckEnds(batches));
  }
  return absl::OkStatus();
}

absl::Status CheckEnds(const Batches& batches) {
  constexpr int64_t kMost = kMaxDatasetSize + kMaxSamplingRanks;
  if (std::ssize(batches) <= kMost) return absl::OkStatus();
  return Breaks("Batches", absl::StrCat("an epoch does not end after ", kMost,
                                        " batches"));
}

absl::StatusOr<std::vector<Batches>> DrawRanks(const SubjectFactory& make,
                                               const SamplingCase& c,
                                               int64_t epoch) {
  std::vector<Batches> ranks;
  for (int rank = 0; rank < c.world_size; ++rank) {
    auto subject = make(c, rank);
    if (!subject.ok()) return At(c, rank, subject.status());
    (*subject)->SetEpoch(epoch);
    auto batches = DrawEpoch(**subject);
    if (!batches.ok()) return At(c, rank, batches.status());
    ranks.push_back(*std::move(batches));
  }
  return ranks;
}

std::optional<std::string> FirstDifference(const Batches& got,
                                           const Batches& want, int rank) {
  for (size_t step = 0; step < std::max(got.size(), want.size()); ++step) {
    if (step < got.size() && step < want.size() && got[step] == want[step]) {
      continue;
    }
    return absl::StrCat("rank ", rank, ", step ", step, ": draws ",
                        BatchText(got, step), ", wanted ",
                        BatchText(want, step));
  }
  return std::nullopt;
}

std::optional<std::string> FirstDifference(const std::vector<Batches>& got,
                                           const std::vector<Batches>& want) {
  for (size_t rank = 0; rank < want.size(); ++rank) {
    auto difference =
        FirstDifference(got[rank], want[rank], static_cast<int>(rank));
    if (difference.has_value()) return difference;
  }
  return std::nullopt;
}

absl::Status At(const SamplingCase& c, int rank, const absl::Status& status) {
  if (status.ok()) return status;
  if (absl::IsDataLoss(status)) {  // The property stays in front.
    return absl::DataLossError(absl::StrCat(std::string(status.message()), ": ",
                                            ToString(c), ", rank ", rank));
  }
  return absl::Status(status.code(),
                      absl::StrCat(ToString(c), ", rank ", rank, ": ",
                                   std::string(status.message())));
}

absl::Status Breaks(SamplingProperty property, const SamplingCase& c,
                    const std::string& how) {
  return Breaks(property, absl::StrCat(ToString(c), ": ", how));
}

absl::Status Breaks(SamplingProperty property, const std::string& how) {
  return absl::DataLossError(absl::StrCat(property.name(), ": ", how));
}

}  // namespace lockstep
