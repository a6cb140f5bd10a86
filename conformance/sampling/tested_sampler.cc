// The epochs that the conformance suite asks of samplers.
#include "conformance/sampling/tested_sampler.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "sampler/batch_sampler.h"
#include "sampler/distributed_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {
namespace {

class BatchesOfSampler : public TestedSampler {
 public:
  explicit BatchesOfSampler(BatchSampler batches)
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

std::vector<SamplingCase> SamplingKinds() {
  std::vector<SamplingCase> kinds;
  for (const Semantics semantics :
       {Semantics::kTorch, Semantics::kPaddle, Semantics::kExact}) {
    for (const Shuffle shuffle :
         {Shuffle::kNone, Shuffle::kOwn, Shuffle::kKeyed}) {
      if (semantics == Semantics::kPaddle && shuffle == Shuffle::kKeyed) {
        continue;
      }
      for (const bool drop_tail : {false, true}) {
        if (drop_tail && semantics != Semantics::kTorch) continue;
        for (const bool drop_last : {false, true}) {
          kinds.push_back({.semantics = semantics,
                           .shuffle = shuffle,
                           .drop_tail = drop_tail,
                           .drop_last = drop_last});
        }
      }
    }
  }
  return kinds;
}

const char* Name(Semantics semantics) {
  constexpr const char* kNames[] = {"torch", "paddle", "exact"};
  return kNames[static_cast<int>(semantics)];
}

std::string KindName(const SamplingCase& kind) {
  constexpr const char* kSemantics[] = {"Torch", "Paddle", "Exact"};
  constexpr const char* kShuffles[] = {"InOrder", "Shuffled", "Keyed"};
  return absl::StrCat(kSemantics[static_cast<int>(kind.semantics)],
                      kShuffles[static_cast<int>(kind.shuffle)],
                      kind.drop_tail ? "DropTail" : "",
                      kind.drop_last ? "DropLast" : "");
}

void PrintTo(const SamplingCase& kind, std::ostream* out) {
  *out << KindName(kind);
}

std::string ToString(const SamplingCase& c) {
  constexpr const char* kShuffles[] = {"in order", "shuffled", "keyed shuffle"};
  return absl::StrCat(
      Name(c.semantics), ", ", kShuffles[static_cast<int>(c.shuffle)],
      c.drop_tail ? ", drop_tail" : "", c.drop_last ? ", drop_last" : "",
      ", n=", c.dataset_size, " P=", c.world_size, " B=", c.batch_size);
}

std::vector<SamplingCase> CasesOf(std::span<const SamplingCase> kinds,
                                  std::span<const int64_t> dataset_sizes,
                                  std::span<const int> world_sizes,
                                  std::span<const int64_t> batch_sizes) {
  std::vector<SamplingCase> cases;
  for (SamplingCase kind : kinds) {
    for (const int64_t n : dataset_sizes) {
      for (const int world_size : world_sizes) {
        for (const int64_t batch : batch_sizes) {
          kind.dataset_size = n;
          kind.world_size = world_size;
          kind.batch_size = batch;
          cases.push_back(kind);
        }
      }
    }
  }
  return cases;
}

std::vector<SamplingCase> CasesAt(const SamplingCase& kind, int world_size) {
  std::vector<int64_t> sizes(kMaxDatasetSize), batches(kMaxBatchSize);
  std::iota(sizes.begin(), sizes.end(), 1);
  std::iota(batches.begin(), batches.end(), 1);
  return CasesOf({&kind, 1}, sizes, {&world_size, 1}, batches);
}

SamplingCase OneRank(SamplingCase c) {
  c.world_size = 1;
  c.drop_last = false;
  return c;
}

absl::StatusOr<std::unique_ptr<TestedSampler>> MakeTestedSampler(
    const SamplingCase& c, int rank) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto sampler, c.semantics == Semantics::kPaddle
                                              ? MakePaddle(c, rank)
                                              : MakeDistributed(c, rank));
  LOCKSTEP_ASSIGN_OR_RETURN(
      BatchSampler batches,
      BatchSampler::Create(std::move(sampler), {.batch_size = c.batch_size,
                                                .drop_last = c.drop_last}));
  return std::make_unique<BatchesOfSampler>(std::move(batches));
}

absl::StatusOr<Batches> DrawEpoch(TestedSampler& sampler) {
  LOCKSTEP_RETURN_IF_ERROR(sampler.BeginEpoch());
  Batches batches;
  LOCKSTEP_RETURN_IF_ERROR(DrawRemaining(sampler, batches));
  return batches;
}

absl::Status DrawRemaining(TestedSampler& sampler, Batches& batches) {
  while (std::optional<std::vector<int64_t>> batch = sampler.NextBatch()) {
    batches.push_back(*std::move(batch));
    LOCKSTEP_RETURN_IF_ERROR(CheckEnds(batches));
  }
  return absl::OkStatus();
}

absl::Status CheckEnds(const Batches& batches) {
  constexpr int64_t kMost = kMaxDatasetSize + kMaxSamplingRanks;
  if (std::ssize(batches) <= kMost) return absl::OkStatus();
  return PropertyError("Batches", absl::StrCat("an epoch does not end after ",
                                               kMost, " batches"));
}

absl::StatusOr<std::vector<Batches>> DrawRanks(const SamplerFactory& make,
                                               const SamplingCase& c,
                                               int64_t epoch) {
  std::vector<Batches> ranks;
  for (int rank = 0; rank < c.world_size; ++rank) {
    auto sampler = make(c, rank);
    if (!sampler.ok()) return At(c, rank, sampler.status());
    (*sampler)->SetEpoch(epoch);
    auto batches = DrawEpoch(**sampler);
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

absl::Status PropertyError(SamplingProperty property, const SamplingCase& c,
                           const std::string& how) {
  return PropertyError(property, absl::StrCat(ToString(c), ": ", how));
}

absl::Status PropertyError(SamplingProperty property, const std::string& how) {
  return absl::DataLossError(absl::StrCat(property.name(), ": ", how));
}

}  // namespace lockstep::conformance
