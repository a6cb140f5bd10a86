// The decorator that plants a fault.
#include "conformance/sampling/sampling_mutants.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "conformance/sampling/sampler_checker.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

class FaultySampler : public SamplingSubject {
 public:
  FaultySampler(const SamplingFault& fault, const SamplingCase& c, int rank,
                std::unique_ptr<SamplingSubject> real)
      : fault_(fault), case_(c), rank_(rank), real_(std::move(real)) {}

  void SetEpoch(int64_t epoch) override {
    epoch_ = epoch;
    goes_on_ = false;
    if (fault_.sets_epoch != nullptr) {
      fault_.sets_epoch(*real_, restored_, epoch);
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
    std::optional<std::vector<int64_t>> batch = real_->NextBatch();
    if (!batch.has_value() && fault_.never_ends) return std::vector<int64_t>();
    if (!drawn_.has_value()) return batch;
    if (step_ == drawn_->size()) return std::nullopt;
    return (*drawn_)[step_++];
  }

  int64_t num_batches() const override {
    const std::optional<Batches> drawn = Drawn();
    if (drawn.has_value()) return std::ssize(*drawn);
    const int64_t batches = real_->num_batches();
    return fault_.says_batches == nullptr ? batches
                                          : fault_.says_batches(batches);
  }

  absl::StatusOr<SamplerState> State() const override {
    LOCKSTEP_ASSIGN_OR_RETURN(SamplerState state, real_->State());
    if (fault_.saves != nullptr) fault_.saves(state, rank_);
    return state;
  }

  absl::Status Restore(const SamplerState& state) override {
    restored_ = state;
    goes_on_ = true;
    return fault_.restores == nullptr ? real_->Restore(state)
                                      : fault_.restores(*real_, case_, state);
  }

 private:
  // What is drawn here instead, if anything.
  std::optional<Batches> Drawn() const {
    if (fault_.draws != nullptr) return fault_.draws(case_, rank_, epoch_);
    if (fault_.draws_rest == nullptr || !goes_on_ ||
        restored_->world_size == case_.world_size) {
      return std::nullopt;
    }
    return fault_.draws_rest(case_, rank_, *restored_);
  }

  const SamplingFault fault_;
  const SamplingCase case_;
  const int rank_;
  const std::unique_ptr<SamplingSubject> real_;
  std::optional<SamplerState> restored_;
  bool goes_on_ = false;  // From restored_.
  int64_t epoch_ = 0;
  std::optional<Batches> drawn_;
  size_t step_ = 0;
};

}  // namespace

SubjectFactory MakeFaulty(const SamplingFault& fault) {
  return [fault](const SamplingCase& c,
                 int rank) -> absl::StatusOr<std::unique_ptr<SamplingSubject>> {
    SamplingCase told = c;
    int told_rank = rank;
    if (fault.told != nullptr) fault.told(told, told_rank);
    LOCKSTEP_ASSIGN_OR_RETURN(auto real, MakeSubject(told, told_rank));
    return std::make_unique<FaultySampler>(fault, c, rank, std::move(real));
  };
}

// Faults in what is refused: ranks beside the group, sizes below 1, and epochs
// of no step.
namespace {

bool HasSteps(const SamplingCase& c) { return StepsOf(c) > 0; }

}  // namespace

std::vector<SamplingFault> GuardFaults() {
  return {
      {.name = "TakesRanksModulo",
       .bug = "a rank outside the group is taken for another",
       .property = "Guards",
       .says = "a rank of -1 is not refused",
       .shows = HasSteps,
       .told =
           [](SamplingCase& c, int& rank) {
             if (c.world_size > 0 && (rank < 0 || rank >= c.world_size)) {
               rank = 0;
             }
           }},
      {.name = "TakesAnEmptyEpoch",
       .bug = "an epoch of which drop_last leaves nothing is taken",
       .property = "Guards",
       .says = "an epoch that drop_last empties is not refused",
       .shows = [](const SamplingCase& c) { return StepsOf(c) == 0; },
       .told =
           [](SamplingCase& c, int&) {
             if (c.world_size < 1 || c.batch_size < 1 || StepsOf(c) > 0) return;
             c.drop_tail = c.drop_last = false;
           }},
      {.name = "CountsRanksFromOne",
       .bug = "a rank of the world size is taken",
       .property = "Guards",
       .says = "a rank as large as the world is not refused",
       .shows = HasSteps,
       .told =
           [](SamplingCase& c, int& rank) {
             if (c.world_size > 0 && rank == c.world_size) rank = 0;
           }},
      {.name = "TakesNoSamples",
       .bug = "a data set of less than one sample is taken for one of one",
       .property = "Guards",
       .says = "a dataset_size of 0 is not refused",
       // Else that sample is dropped.
       .shows =
           [](const SamplingCase& c) { return !c.drop_tail && !c.drop_last; },
       .told =
           [](SamplingCase& c, int&) {
             c.dataset_size = std::max<int64_t>(1, c.dataset_size);
           }},
      {.name = "TakesNoRanks",
       .bug = "a world of less than one rank is taken for one of one",
       .property = "Guards",
       .says = "a world_size of 0 is not refused",
       .shows = HasSteps,
       .told = [](SamplingCase& c,
                  int&) { c.world_size = std::max(1, c.world_size); }},
      {.name = "TakesNoBatch",
       .bug = "batches of less than one sample are taken for batches of one",
       .property = "Guards",
       .says = "a batch_size of 0 is not refused",
       .shows = HasSteps,
       .told = [](SamplingCase& c,
                  int&) { c.batch_size = std::max<int64_t>(1, c.batch_size); }},
  };
}

// Plants faults in samplers and asks the suite.

std::vector<SamplingFault> AllSamplingFaults() {
  std::vector<SamplingFault> all = GuardFaults();
  for (const auto& some : {EpochFaults(), ResumeFaults()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<std::string> SamplingProperties() {
  std::vector<std::string> names = EpochProperties();
  for (const std::string& name : ResumeProperties()) names.push_back(name);
  return names;
}

std::vector<SamplingCase> SamplingFaultCases() {
  constexpr int64_t kDatasetSizes[] = {1, 2, 5, 11, 24, 40};
  constexpr int kWorldSizes[] = {1, 2, 3, 4, 9};
  constexpr int64_t kBatchSizes[] = {1, 3, 7};
  return CasesOf(kDatasetSizes, kWorldSizes, kBatchSizes);
}

bool MustShow(const SamplingFault& fault, const SamplingCase& c) {
  return (StepsOf(c) > 0 || fault.property == "Guards") && fault.shows(c);
}

absl::Status CheckSampler(const SubjectFactory& make, const SamplingCase& c) {
  LOCKSTEP_RETURN_IF_ERROR(CheckEpochs(make, c));
  return CheckResuming(make, c);
}

}  // namespace lockstep
