// Mutants of the keys from which samples are drawn, and of the loaded results.
#include "conformance/loading/loading_mutants.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "conformance/loading/loading_checks.h"
#include "conformance/mutant.h"
#include "models/data/image.h"
#include "models/data/loader.h"
#include "models/data/transform.h"

namespace lockstep::conformance {
namespace {

// The circumstances of a draw that a mutant knows, in addition to the key.
struct Circumstances {
  LoadingCase c;
  int rank = 0;
  int thread = 0;     // 0: the caller's thread. Workers count from 1.
  int64_t place = 0;  // The place in the rank's part of the batch.
  int64_t loaded_before = 0;
};

// Returns another key to draw from. The label stays the sample's.
using OtherKey =
    std::function<SampleKey(SampleKey key, const Circumstances& at)>;

// Changes the loaded pixels or label.
using ResultMutation =
    std::function<void(std::span<float> last, std::span<float> out,
                       SampleLabel& label, const Circumstances& at)>;

class MutantSource : public SampleSource {
 public:
  MutantSource(SampleSource& real, const LoadingCase& c, int rank,
               OtherKey other_key, ResultMutation spoil)
      : real_(real),
        c_(c),
        rank_(rank),
        other_key_(std::move(other_key)),
        spoil_(std::move(spoil)),
        last_(real.shape().size()) {}

  ImageShape shape() const override { return real_.shape(); }

  absl::StatusOr<SampleLabel> Load(const SampleKey& key, int worker,
                                   std::span<float> out) override {
    // Loads one sample at a time, so that the order depends on the index alone.
    const std::lock_guard lock(mutex_);
    Circumstances at = {c_, rank_, c_.workers == 0 ? 0 : worker + 1,
                        PlaceOf(key), loaded_before_++};
    const SampleKey drawn = other_key_ ? other_key_(key, at) : key;
    LOCKSTEP_ASSIGN_OR_RETURN(SampleLabel label,
                              real_.Load(drawn, worker, out));
    label.label = static_cast<int32_t>(key.index);
    const std::vector<float> right(out.begin(), out.end());
    if (spoil_) spoil_(last_, out, label, at);
    last_ = right;
    return label;
  }

 private:
  int64_t PlaceOf(const SampleKey& key) const {
    for (const std::vector<int64_t>& part : PartsOf(c_, key.epoch, rank_)) {
      const auto found = std::ranges::find(part, key.index);
      if (found != part.end()) return found - part.begin();
    }
    return 0;
  }

  SampleSource& real_;
  const LoadingCase c_;
  const int rank_;
  const OtherKey other_key_;
  const ResultMutation spoil_;
  std::mutex mutex_;
  std::vector<float> last_;
  int64_t loaded_before_ = 0;
};

// The case in which every mutant must show, unless only a resumed run shows it.
constexpr LoadingCase kCase = {
    .world_size = 2, .workers = 2, .batch_size = 6, .shuffled = true};

// The same case, resumed in the middle of each epoch.
constexpr LoadingCase kResumedCase = [] {
  LoadingCase c = kCase;
  c.first_batch = 2;
  return c;
}();

// Returns the verdict on kCase or, if that is OK, on kResumedCase. If a
// diagnosis has "from batch 2 on", only the resumed run shows the mutant.
absl::Status CheckBothRunsAgree(const LoadedSamples& one,
                                const LoadedSamples& run,
                                const LoadedSamples& resumed) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRunsAgree(kCase, one, run));
  return CheckRunsAgree(kResumedCase, one, resumed);
}

absl::StatusOr<Caught> PlantInLoaders(const OtherKey& other_key,
                                      const ResultMutation& spoil) {
  const auto mutate = [&](SampleSource& real, const LoadingCase& c, int rank) {
    return std::make_unique<MutantSource>(real, c, rank, other_key, spoil);
  };
  LoadingCase other_seed;
  other_seed.seed = 99;
  LOCKSTEP_ASSIGN_OR_RETURN(const LoadedSamples one, LoadByLoaders({}, mutate));
  LOCKSTEP_ASSIGN_OR_RETURN(const LoadedSamples run,
                            LoadByLoaders(kCase, mutate));
  LOCKSTEP_ASSIGN_OR_RETURN(const LoadedSamples resumed,
                            LoadByLoaders(kResumedCase, mutate));
  LOCKSTEP_ASSIGN_OR_RETURN(const LoadedSamples other,
                            LoadByLoaders(other_seed, mutate));
  const std::pair<std::string, absl::Status> verdicts[] = {
      {"RunsAgree", CheckBothRunsAgree(one, run, resumed)},
      {"EpochsDiffer", CheckEpochsDiffer(one)},
      {"SamplesDiffer", CheckSamplesDiffer(one)},
      {"SeedsDiffer", CheckSeedsDiffer(one, other)}};
  return CaughtBy(verdicts);
}

Mutant MakeLoadingMutant(const std::string& name, const std::string& planted,
                         const CheckNames& checks, const std::string& says,
                         const OtherKey& other_key,
                         const ResultMutation& spoil = nullptr) {
  Mutant mutant = {name, planted, checks, says};
  mutant.plant = [=] { return PlantInLoaders(other_key, spoil); };
  return mutant;
}

}  // namespace

MutantSuite LoadingMutants() {
  using At = Circumstances;
  return MakeSuite(
      "loading", kLoadingChecks,
      {MakeLoadingMutant("KeyedByRank",
                         "each rank draws from a generator of its own",
                         "RunsAgree", "as if drawn by the rank",
                         [](SampleKey key, const At& at) {
                           key.seed += at.rank;
                           return key;
                         }),
       MakeLoadingMutant("KeyedByWorldSize",
                         "the number of ranks is part of the seed", "RunsAgree",
                         "as if drawn by the number of ranks",
                         [](SampleKey key, const At& at) {
                           key.seed += kWorldSizeStride * (at.c.world_size - 1);
                           return key;
                         }),
       MakeLoadingMutant("KeyedByWorker",
                         "each worker draws from a generator of its own",
                         "RunsAgree", "as if drawn by the thread",
                         [](SampleKey key, const At& at) {
                           key.seed += kThreadStride * at.thread;
                           return key;
                         }),
       MakeLoadingMutant("KeyedByPlace",
                         "the place in the batch stands for the sample",
                         "RunsAgree", "as if drawn by the place in the batch",
                         [](SampleKey key, const At& at) {
                           key.index = at.place;
                           return key;
                         }),
       MakeLoadingMutant("KeyedByArrival",
                         "one generator is drawn from in the order of arrival",
                         "RunsAgree", "as if drawn one after the other",
                         [](SampleKey key, const At& at) {
                           key.epoch = at.loaded_before / kLoadingSamples;
                           key.index = at.loaded_before % kLoadingSamples;
                           return key;
                         }),
       MakeLoadingMutant(
           "KeyedByCountSinceResumed",
           "a resumed epoch begins again with the first draws", "RunsAgree",
           "from batch 2 on), has other pixels than on one rank; as if "
           "drawn by the count since the run was resumed",
           [](SampleKey key, const At& at) {
             key.index =
                 CountedFromTheStart(at.c, key.epoch, at.rank, key.index);
             return key;
           }),
       MakeLoadingMutant(
           "KeepsPartOfTheLast",
           "the first pixels are those of the sample loaded before",
           "RunsAgree", "for no known cause", nullptr,
           [](std::span<float> last, std::span<float> out, SampleLabel&,
              const At&) { std::ranges::copy(last.first(9), out.begin()); }),
       MakeLoadingMutant(
           "MixesLabelsByPlace",
           "the other label is that of the place in the batch", "RunsAgree",
           "another label", nullptr,
           [](std::span<float>, std::span<float>, SampleLabel& label,
              const At& at) { label.other = static_cast<int32_t>(at.place); }),
       MakeLoadingMutant("LeavesTheEpochOut", "every epoch draws the same",
                         "EpochsDiffer", "has the pixels of epoch 0",
                         [](SampleKey key, const At&) {
                           key.epoch = 0;
                           return key;
                         }),
       MakeLoadingMutant("LeavesTheSampleOut",
                         "all samples of an epoch draw the same",
                         "SamplesDiffer", "has the pixels of sample 0",
                         [](SampleKey key, const At&) {
                           key.index = 0;
                           return key;
                         }),
       MakeLoadingMutant("LeavesTheSeedOut", "every seed draws the same",
                         "SeedsDiffer", "has the pixels of another seed",
                         [](SampleKey key, const At&) {
                           key.seed = 0;
                           return key;
                         })});
}

}  // namespace lockstep::conformance
