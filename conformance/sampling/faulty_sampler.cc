// The decorator that plants a fault.
#include "conformance/sampling/faulty_sampler.h"

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_subject.h"
#include "sampler/sampler_state.h"

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

}  // namespace lockstep
