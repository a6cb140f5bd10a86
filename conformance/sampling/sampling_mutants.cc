// The decorator that plants a mutation, and the mutants of guards.
#include "conformance/sampling/sampling_mutants.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "conformance/mutant.h"
#include "conformance/sampling/epoch_mutants.h"
#include "conformance/sampling/resume_checker.h"
#include "conformance/sampling/resume_mutants.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {
namespace {

class MutatedSampler : public TestedSampler {
 public:
  MutatedSampler(const SamplingMutation& mutation, const SamplingCase& c,
                 int rank, std::unique_ptr<TestedSampler> real)
      : mutation_(mutation), case_(c), rank_(rank), real_(std::move(real)) {}

  void SetEpoch(int64_t epoch) override {
    epoch_ = epoch;
    is_resumed_ = false;
    if (mutation_.sets_epoch != nullptr) {
      mutation_.sets_epoch(*real_, restored_, epoch);
    } else {
      real_->SetEpoch(epoch);
    }
  }

  absl::Status BeginEpoch() override {
    LOCKSTEP_RETURN_IF_ERROR(real_->BeginEpoch());
    drawn_ = Drawn();
    step_ = 0;
    return absl::OkStatus();
  }

  std::optional<std::vector<int64_t>> NextBatch() override {
    auto batch = real_->NextBatch();
    if (!batch.has_value() && mutation_.never_ends) {
      return std::vector<int64_t>();
    }
    if (drawn_.has_value()) {
      if (step_ == drawn_->size()) return std::nullopt;
      batch = (*drawn_)[step_];
    }
    if (mutation_.swaps && case_.world_size > 1 && rank_ == 0 && step_ == 0 &&
        batch.has_value() && batch->size() > 1) {
      std::swap((*batch)[0], (*batch)[1]);
    }
    ++step_;
    return batch;
  }

  int64_t num_batches() const override {
    const std::optional<Batches> drawn = Drawn();
    if (drawn.has_value()) return std::ssize(*drawn);
    const int64_t batches = real_->num_batches();
    return mutation_.says_batches == nullptr ? batches
                                             : mutation_.says_batches(batches);
  }

  absl::StatusOr<SamplerState> State() const override {
    LOCKSTEP_ASSIGN_OR_RETURN(SamplerState state, real_->State());
    if (mutation_.saves != nullptr) mutation_.saves(state, rank_);
    return state;
  }

  absl::Status Restore(const SamplerState& state) override {
    restored_ = state;
    is_resumed_ = true;
    return mutation_.restores == nullptr
               ? real_->Restore(state)
               : mutation_.restores(*real_, case_, state);
  }

 private:
  // Returns the batches that the mutation draws instead, if any.
  std::optional<Batches> Drawn() const {
    if (mutation_.draws != nullptr)
      return mutation_.draws(case_, rank_, epoch_);
    if (mutation_.draws_remaining == nullptr || !is_resumed_ ||
        restored_->world_size == case_.world_size) {
      return std::nullopt;
    }
    return mutation_.draws_remaining(case_, rank_, *restored_);
  }

  const SamplingMutation mutation_;
  const SamplingCase case_;
  const int rank_;
  const std::unique_ptr<TestedSampler> real_;
  std::optional<SamplerState> restored_;
  bool is_resumed_ = false;  // Whether the sampler continues from restored_.
  int64_t epoch_ = 0;
  std::optional<Batches> drawn_;
  size_t step_ = 0;
};

bool HasSteps(const SamplingCase& c) { return StepsOf(c) > 0; }

template <auto kMember>
void AtLeastOne(SamplingCase& c, int&) {
  if (c.*kMember < 1) c.*kMember = 1;
}

// Mutants of ranks outside the group, of sizes below 1, and of epochs without a
// step.
std::vector<SamplingMutant> GuardMutants() {
  return {
      {{"TakesRanksModulo", "a rank outside the group is taken for another",
        "Guards", "a rank of -1 is not refused"},
       {.shows = {HasSteps},
        .told =
            [](SamplingCase& c, int& rank) {
              if (c.world_size < 1) return;
              if (rank < 0 || rank >= c.world_size) rank = 0;
            }}},
      {{"TakesAnEmptyEpoch",
        "an epoch of which drop_last leaves nothing is taken", "Guards",
        "an epoch that drop_last empties is not refused"},
       {.shows = {[](const SamplingCase& c) { return !HasSteps(c); }},
        .told =
            [](SamplingCase& c, int&) {
              if (c.world_size < 1 || c.batch_size < 1) return;
              if (!HasSteps(c)) c.drop_tail = c.drop_last = false;
            }}},
      {{"CountsRanksFromOne", "a rank of the world size is taken", "Guards",
        "a rank as large as the world is not refused"},
       {.shows = {HasSteps},
        .told =
            [](SamplingCase& c, int& rank) {
              if (c.world_size > 0 && rank == c.world_size) rank = 0;
            }}},
      // With a drop option, this sample would be dropped.
      {{"TakesNoSamples",
        "a data set of less than one sample is taken for one of one", "Guards",
        "a dataset_size of 0 is not refused"},
       {.shows = {KeepsAll}, .told = AtLeastOne<&SamplingCase::dataset_size>}},
      {{"TakesNoRanks", "a world of less than one rank is taken for one of one",
        "Guards", "a world_size of 0 is not refused"},
       {.shows = {HasSteps}, .told = AtLeastOne<&SamplingCase::world_size>}},
      {{"TakesNoBatch",
        "batches of less than one sample are taken for batches of one",
        "Guards", "a batch_size of 0 is not refused"},
       {.shows = {HasSteps}, .told = AtLeastOne<&SamplingCase::batch_size>}},
  };
}

// Adds the functions that plant the mutant.
void Plant(SamplingMutant& planted) {
  auto& [mutant, mutation] = planted;
  const auto cases = [mutation = mutation,
                      refused = mutant.checks[0] == "Guards"] {
    std::vector<SamplingCase> shown = SamplingMutantCases();
    std::erase_if(shown, [&](const SamplingCase& c) {
      return (!HasSteps(c) && !refused) || !mutation.ShowsIn(c);
    });
    return shown;
  };
  mutant.plant = [cases, mutation = mutation]() -> absl::StatusOr<Caught> {
    const std::vector<SamplingCase> shown = cases();
    if (shown.empty()) return absl::InternalError("it shows in no case");
    return CaughtBy(CheckSampler(MakeMutated(mutation), shown[0]));
  };
  mutant.plant_everywhere = [cases, mutation = mutation,
                             mutant = mutant]() -> absl::StatusOr<int64_t> {
    const std::vector<SamplingCase> shown = SliceOf(cases(), 10);
    for (const SamplingCase& c : shown) {
      LOCKSTEP_RETURN_IF_ERROR(ExpectNamed(
          mutant, CheckSampler(MakeMutated(mutation), c), ToString(c)));
    }
    return std::ssize(shown);
  };
}

}  // namespace

Batches DealPart(const SamplingCase& c, const std::vector<int64_t>& order,
                 int rank) {
  return Cut(c, Deal(c, order))[static_cast<size_t>(rank)];
}

bool SamplingMutation::ShowsIn(const SamplingCase& c) const {
  return std::ranges::all_of(shows, [&](const auto in) { return in(c); });
}

SamplerFactory MakeMutated(const SamplingMutation& mutation) {
  return [mutation](
             const SamplingCase& c,
             int rank) -> absl::StatusOr<std::unique_ptr<TestedSampler>> {
    SamplingCase told = c;
    int told_rank = rank;
    if (mutation.told != nullptr) mutation.told(told, told_rank);
    LOCKSTEP_ASSIGN_OR_RETURN(auto real, MakeTestedSampler(told, told_rank));
    return std::make_unique<MutatedSampler>(mutation, c, rank, std::move(real));
  };
}

std::vector<SamplingCase> SamplingMutantCases() {
  constexpr int64_t kDatasetSizes[] = {1, 2, 5, 11, 24, 40};
  constexpr int kWorldSizes[] = {1, 2, 3, 4, 9};
  constexpr int64_t kBatchSizes[] = {1, 3, 7};
  return CasesOf(SamplingKinds(), kDatasetSizes, kWorldSizes, kBatchSizes);
}

std::vector<SamplingMutant> AllSamplingMutants() {
  std::vector<SamplingMutant> all = GuardMutants();
  for (const auto& some : {EpochMutants(), ResumeMutants()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  for (SamplingMutant& mutant : all) Plant(mutant);
  return all;
}

MutantSuite SamplingMutants() {
  std::vector<Mutant> mutants;
  for (SamplingMutant& row : AllSamplingMutants()) {
    mutants.push_back(std::move(row.mutant));
  }
  return MakeSuite("sampling", kSamplingProperties, std::move(mutants));
}

}  // namespace lockstep::conformance
