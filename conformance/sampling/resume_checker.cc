// Checks that an epoch can be stopped and resumed.
#include "conformance/sampling/resume_checker.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/sampling/epoch_causes.h"
#include "conformance/sampling/epoch_checker.h"
#include "conformance/sampling/refusal_checks.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {
namespace {

// Not 0: a state that has lost its epoch would then pass.
constexpr int64_t kEpoch = 1;

// The part of a resumed epoch that is drawn before the next epoch is set.
enum class DrawnPart { kNothing, kABatch, kAll };

// The batches of a case's ranks. Also rank 0's states, before the first step
// and after each step.
struct Run {
  std::vector<Batches> ranks;
  std::vector<SamplerState> states;
};

std::string Steps(size_t step) { return absl::StrCat("after step ", step); }

std::string SizeText(const SamplingCase& c) {
  return absl::StrCat("P=", c.world_size, " B=", c.batch_size);
}

class ResumeChecker {
 public:
  ResumeChecker(const SamplerFactory& make, const SamplingCase& c)
      : make_(make), case_(c) {}

  absl::Status Check() {
    if (StepsOf(case_) == 0) return absl::OkStatus();
    LOCKSTEP_ASSIGN_OR_RETURN(run_, RunRanks(case_, nullptr));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> order, Order());
    start_.emplace(case_, kEpoch, order);
    for (const auto check :
         {&ResumeChecker::CheckResume, &ResumeChecker::CheckRescale,
          &ResumeChecker::CheckSecondStop, &ResumeChecker::CheckNextEpochs}) {
      for (size_t step = 0; step < run_.states.size(); ++step) {
        LOCKSTEP_RETURN_IF_ERROR((this->*check)(step));
      }
    }
    return CheckBadStates(make_, case_, run_.states[0], run_.ranks.back());
  }

 private:
  // Returns a number in [0, end) that depends on the case, the step and the
  // use.
  int64_t Pick(size_t step, int64_t use, int64_t end) const {
    uint64_t x = static_cast<uint64_t>(
        ((case_.dataset_size * 16 + case_.world_size) * 16 + case_.batch_size) *
            64 +
        static_cast<int64_t>(step));
    x = (x * 8 + static_cast<uint64_t>(use) + 1) * 0x9E3779B97F4A7C15u;
    return static_cast<int64_t>((x >> 32) % static_cast<uint64_t>(end));
  }

  SamplingCase AtSize(int64_t world_size, int64_t batch_size) const {
    SamplingCase c = case_;
    c.world_size = static_cast<int>(world_size);
    c.batch_size = batch_size;
    return c;
  }

  int64_t OtherBatchSize(size_t step) const {
    const int64_t other = 1 + Pick(step, 0, kMaxBatchSize - 1);
    return other < case_.batch_size ? other : other + 1;
  }

  absl::Status CompareState(const SamplerState& state, int rank, size_t step,
                            Run& run) const {
    if (rank == 0) {
      const auto kept = SamplerStateFromJson(ToJson(state));
      if (!kept.ok()) return At(case_, rank, kept.status());
      if (!(*kept == state)) {
        return PropertyError(
            "States", case_,
            absl::StrCat(Steps(step), ": JSON keeps ", ToJson(*kept), " of ",
                         ToJson(state)));
      }
      run.states.push_back(*kept);
      return absl::OkStatus();
    }
    if (step < run.states.size() && state == run.states[step]) {
      return absl::OkStatus();
    }
    return PropertyError(
        "States", case_,
        absl::StrCat(Steps(step), ": rank ", rank, "'s state is ",
                     ToJson(state), ", rank 0's is ",
                     step < run.states.size() ? ToJson(run.states[step])
                                              : "none: it has fewer steps"));
  }

  // Runs each rank of `c` step by step, from a state or from the start of the
  // epoch. Checks that the ranks' states agree.
  absl::StatusOr<Run> RunRanks(const SamplingCase& c,
                               const SamplerState* from) const {
    Run run;
    for (int rank = 0; rank < c.world_size; ++rank) {
      LOCKSTEP_ASSIGN_OR_RETURN(const auto sampler, make_(c, rank));
      if (from == nullptr) {
        sampler->SetEpoch(kEpoch);
      } else {
        LOCKSTEP_RETURN_IF_ERROR(sampler->Restore(*from));
      }
      LOCKSTEP_RETURN_IF_ERROR(sampler->BeginEpoch());
      Batches& batches = run.ranks.emplace_back();
      for (;;) {
        const auto state = sampler->State();
        if (!state.ok()) return At(c, rank, state.status());
        LOCKSTEP_RETURN_IF_ERROR(
            CompareState(*state, rank, batches.size(), run));
        std::optional<std::vector<int64_t>> batch = sampler->NextBatch();
        if (!batch.has_value()) break;
        batches.push_back(*std::move(batch));
        const absl::Status ends = CheckEnds(batches);
        if (!ends.ok()) return At(c, rank, ends);
      }
      if (batches.size() != run.ranks[0].size()) {
        return PropertyError(
            "States", case_,
            absl::StrCat("rank ", rank, " takes ", batches.size(),
                         " steps, rank 0 takes ", run.ranks[0].size()));
      }
    }
    return run;
  }

  // Returns what the ranks of `c` draw from `state` on. A failure names
  // `property`.
  absl::StatusOr<std::vector<Batches>> DrawFrom(SamplingProperty property,
                                                const SamplerState& state,
                                                const SamplingCase& c) const {
    std::vector<Batches> ranks;
    for (int rank = 0; rank < c.world_size; ++rank) {
      auto sampler = make_(c, rank);
      if (!sampler.ok()) return At(c, rank, sampler.status());
      const absl::Status restored = (*sampler)->Restore(state);
      if (!restored.ok()) return At(c, rank, restored);
      const int64_t said = (*sampler)->num_batches();
      auto batches = DrawEpoch(**sampler);
      if (!batches.ok()) return At(c, rank, batches.status());
      if (std::ssize(*batches) != said) {
        return PropertyError(
            property, case_,
            absl::StrCat("restored at ", SizeText(c), ", num_batches() says ",
                         said, ", there are ", batches->size()));
      }
      ranks.push_back(*std::move(batches));
    }
    return ranks;
  }

  // Returns the order of the epoch, which is the sampler's own if it is keyed.
  absl::StatusOr<std::vector<int64_t>> Order() const {
    if (case_.shuffle != Shuffle::kKeyed) return ReferenceOrder(case_, kEpoch);
    const SamplingCase one_rank = OneRank(AtSize(1, case_.dataset_size));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto ranks,
                              DrawRanks(make_, one_rank, kEpoch));
    std::vector<int64_t> order = Flat(ranks[0]);
    std::vector<bool> seen(static_cast<size_t>(case_.dataset_size));
    for (const int64_t index : order) {
      if (index < 0 || index >= case_.dataset_size ||
          seen[static_cast<size_t>(index)]) {
        return PropertyError("Rescale", case_, "one rank draws no permutation");
      }
      seen[static_cast<size_t>(index)] = true;
    }
    return order;
  }

  absl::Status CheckTakeOver(const TakeOver& take_over,
                             const std::string& when) const {
    const std::optional<std::string> wrong = WrongTakeOver(take_over);
    if (!wrong.has_value()) return absl::OkStatus();
    return PropertyError(
        "Rescale", case_,
        absl::StrCat(when, ", at ", SizeText(take_over.next), ": ", *wrong));
  }

  absl::Status CheckResume(size_t step) const {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto got,
                              DrawFrom("Resume", run_.states[step], case_));
    for (size_t rank = 0; rank < got.size(); ++rank) {
      const Batches& whole = run_.ranks[rank];
      const Batches left(whole.begin() + static_cast<ptrdiff_t>(step),
                         whole.end());
      const auto difference =
          FirstDifference(got[rank], left, static_cast<int>(rank));
      if (difference.has_value()) {
        return PropertyError(
            "Resume", case_,
            absl::StrCat(Steps(step), ", resumed: ", *difference,
                         CauseOfResume({make_, case_, static_cast<int>(rank),
                                        kEpoch, step, whole, got[rank]})));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckRescale(size_t step) const {
    const EpochPosition stopped = start_->After(static_cast<int64_t>(step));
    for (int world_size = 1; world_size <= kMaxSamplingRanks; ++world_size) {
      for (const int64_t batch : {case_.batch_size, OtherBatchSize(step)}) {
        const SamplingCase next = AtSize(world_size, batch);
        if (StepsOf(next) == 0) continue;
        LOCKSTEP_ASSIGN_OR_RETURN(const auto got,
                                  DrawFrom("Rescale", run_.states[step], next));
        LOCKSTEP_RETURN_IF_ERROR(CheckTakeOver(
            {*start_, case_, static_cast<int64_t>(step), stopped, next, got},
            Steps(step)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckSecondStop(size_t step) const {
    const SamplingCase second = AtSize(1 + Pick(step, 1, kMaxSamplingRanks),
                                       1 + Pick(step, 2, kMaxBatchSize));
    if (StepsOf(second) == 0) return absl::OkStatus();
    LOCKSTEP_ASSIGN_OR_RETURN(const Run run,
                              RunRanks(second, &run_.states[step]));
    const EpochPosition taken_over =
        start_->After(static_cast<int64_t>(step)).TakenOverBy(second);
    for (size_t more = 0; more < run.states.size(); ++more) {
      const EpochPosition stopped =
          taken_over.After(static_cast<int64_t>(more));
      const std::string when = absl::StrCat(Steps(step), " and step ", more,
                                            " at ", SizeText(second));
      for (const SamplingCase& third :
           {case_, AtSize(1 + Pick(step + more, 3, kMaxSamplingRanks),
                          1 + Pick(step + more, 4, kMaxBatchSize))}) {
        if (StepsOf(third) == 0) continue;
        LOCKSTEP_ASSIGN_OR_RETURN(const auto got,
                                  DrawFrom("Rescale", run.states[more], third));
        LOCKSTEP_RETURN_IF_ERROR(CheckTakeOver(
            {*start_, second, static_cast<int64_t>(more), stopped, third, got},
            when));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckNextEpochs(size_t step) const {
    LOCKSTEP_RETURN_IF_ERROR(CheckNextEpoch(step, case_));
    const SamplingCase next =
        AtSize(1 + Pick(step, 5, kMaxSamplingRanks), case_.batch_size);
    return StepsOf(next) == 0 ? absl::OkStatus() : CheckNextEpoch(step, next);
  }

  absl::Status CheckNextEpoch(size_t step, const SamplingCase& next) const {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto want,
                              DrawRanks(make_, next, kEpoch + 1));
    for (int rank = 0; rank < next.world_size; ++rank) {
      LOCKSTEP_ASSIGN_OR_RETURN(const auto sampler, make_(next, rank));
      for (const DrawnPart draws :
           {DrawnPart::kNothing, DrawnPart::kABatch, DrawnPart::kAll}) {
        LOCKSTEP_RETURN_IF_ERROR(sampler->Restore(run_.states[step]));
        if (draws == DrawnPart::kABatch) {
          LOCKSTEP_RETURN_IF_ERROR(sampler->BeginEpoch());
          sampler->NextBatch();
        } else if (draws == DrawnPart::kAll) {
          LOCKSTEP_RETURN_IF_ERROR(DrawEpoch(*sampler).status());
        }
        // Paddle's sampler advances to the next epoch without SetEpoch.
        if (draws != DrawnPart::kAll || next.semantics != Semantics::kPaddle) {
          sampler->SetEpoch(kEpoch + 1);
        }
        LOCKSTEP_ASSIGN_OR_RETURN(const Batches got, DrawEpoch(*sampler));
        const Batches& due = want[static_cast<size_t>(rank)];
        const auto difference = FirstDifference(got, due, rank);
        if (!difference.has_value()) continue;
        return PropertyError(
            "NextEpoch", case_,
            absl::StrCat(Steps(step), ", at ", SizeText(next),
                         draws == DrawnPart::kNothing  ? ""
                         : draws == DrawnPart::kABatch ? ", a batch drawn"
                                                       : ", the rest drawn",
                         ", the epoch after: ", *difference,
                         CauseOfNextEpoch(
                             {make_, next, rank, kEpoch + 1, step, due, got})));
      }
    }
    return absl::OkStatus();
  }

  const SamplerFactory& make_;
  const SamplingCase& case_;
  Run run_;
  std::optional<EpochPosition> start_;
};

}  // namespace

absl::Status CheckResuming(const SamplerFactory& make, const SamplingCase& c) {
  return ResumeChecker(make, c).Check();
}

absl::Status CheckSampler(const SamplerFactory& make, const SamplingCase& c) {
  LOCKSTEP_RETURN_IF_ERROR(CheckEpochs(make, c));
  return CheckResuming(make, c);
}

namespace {

// Whether `got` is `whole` from `step` on.
bool IsFrom(const Batches& whole, size_t step, const Batches& got) {
  return step <= whole.size() &&
         std::equal(got.begin(), got.end(),
                    whole.begin() + static_cast<ptrdiff_t>(step), whole.end());
}

// Returns how the set of drawn samples differs from the samples that were left,
// or none.
std::optional<std::string> WrongSamples(const SamplingCase& c,
                                        const std::vector<int64_t>& left,
                                        const std::vector<Batches>& got) {
  std::vector<int64_t> counts(static_cast<size_t>(c.dataset_size), -1);
  for (const int64_t index : left) counts[static_cast<size_t>(index)] = 0;
  int64_t drawn = 0;
  for (const Batches& batches : got) {
    for (const int64_t index : Flat(batches)) {
      if (index < 0 || index >= c.dataset_size) {
        return absl::StrCat("index ", index, " does not exist");
      }
      if (counts[static_cast<size_t>(index)]++ < 0) {
        return absl::StrCat("index ", index, " was visited and is drawn again");
      }
      ++drawn;
    }
  }
  const auto absent = std::find(counts.begin(), counts.end(), 0);
  const int64_t lost = std::count(counts.begin(), counts.end(), 0);
  const int64_t may_drop = c.drop_last   ? c.world_size * c.batch_size - 1
                           : c.drop_tail ? c.world_size - 1
                                         : 0;
  if (lost > may_drop) {
    return absl::StrCat("index ", absent - counts.begin(), " is lost, one of ",
                        lost);
  }
  const int64_t twice = drawn - (std::ssize(left) - lost);
  const bool pads = c.semantics != Semantics::kExact && !c.drop_tail;
  const int64_t most = pads ? c.world_size - 1 : 0;
  if (twice <= most) return std::nullopt;
  return absl::StrCat(twice, " indices are drawn twice, padding is at most ",
                      most);
}

std::string CauseOf(const TakeOver& of) {
  const EpochPosition last = of.start.TakenOverBy(of.last).After(of.steps);
  if (of.got == last.TakenOverBy(of.next).RemainingBatches()) {
    return "; as if only what the last ranks visited had been";
  }
  const EpochPosition anew = of.start.TakenOverBy(of.next);
  if (of.got == anew.RemainingBatches()) return "; as if the epoch began anew";
  if (of.last.batch_size == of.next.batch_size &&
      of.got == anew.After(of.steps).RemainingBatches()) {
    return absl::StrCat("; as if each of ", of.next.world_size,
                        " ranks had visited as many as each of ",
                        of.last.world_size);
  }
  return "";
}

}  // namespace

std::string CauseOfResume(const WrongResume& wrong) {
  const size_t step = wrong.step;
  if (step > 0 && IsFrom(wrong.whole, step - 1, wrong.got)) {
    return ", as if a batch came again";
  }
  if (IsFrom(wrong.whole, step + 1, wrong.got)) {
    return ", as if a batch were skipped";
  }
  for (const int64_t epoch : {wrong.epoch - 1, wrong.epoch + 1}) {
    if (epoch < 0) continue;
    const auto other = DrawRanks(wrong.make, wrong.c, epoch);
    if (other.ok() &&
        IsFrom((*other)[static_cast<size_t>(wrong.rank)], step, wrong.got)) {
      return absl::StrCat(", as if it were epoch ", epoch);
    }
  }
  return "";
}

std::string CauseOfNextEpoch(const WrongResume& wrong) {
  if (wrong.step > 0 && IsFrom(wrong.whole, wrong.step, wrong.got)) {
    return absl::StrCat(", as if it began at step ", wrong.step,
                        ", where the one before was stopped");
  }
  const auto before = DrawRanks(wrong.make, wrong.c, wrong.epoch - 1);
  if (before.ok() && wrong.got == (*before)[static_cast<size_t>(wrong.rank)]) {
    return absl::StrCat(", as if it were still epoch ", wrong.epoch - 1);
  }
  return "";
}

std::optional<std::string> WrongTakeOver(const TakeOver& take_over) {
  const auto& [start, last, steps, stopped, next, got] = take_over;
  std::optional<std::string> wrong;
  if (!stopped.IsContinuedBy(next)) {
    wrong = WrongSamples(next, stopped.Unvisited(), got);
  }
  if (!wrong.has_value()) {
    wrong = FirstDifference(got, stopped.TakenOverBy(next).RemainingBatches());
    if (wrong.has_value() && !stopped.IsContinuedBy(next)) {
      *wrong += ": those that were left, in another order than they had";
    }
  }
  if (wrong.has_value()) *wrong += CauseOf(take_over);
  return wrong;
}

}  // namespace lockstep::conformance
