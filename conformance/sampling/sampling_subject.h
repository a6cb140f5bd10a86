// What the conformance suite asks of a sampler, and the samplers of sampler/
// behind it.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_SUBJECT_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_SUBJECT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_property.h"
#include "sampler/sampler_state.h"

namespace lockstep {

using Batches = std::vector<std::vector<int64_t>>;  // Of one rank, by step.

// One rank's batches; the contract of each function is BatchSampler's. An
// adapter of this class holds any sampler to the suite.
class SamplingSubject {
 public:
  virtual ~SamplingSubject() = default;

  virtual void SetEpoch(int64_t epoch) = 0;
  virtual absl::Status BeginEpoch() = 0;
  virtual std::optional<std::vector<int64_t>> NextBatch() = 0;
  virtual int64_t num_batches() const = 0;
  virtual absl::StatusOr<SamplerState> State() const = 0;
  virtual absl::Status Restore(const SamplerState& state) = 0;
};

// Makes the subject of a rank, before its first epoch.
using SubjectFactory =
    std::function<absl::StatusOr<std::unique_ptr<SamplingSubject>>(
        const SamplingCase& c, int rank)>;

// BatchSampler over DistributedSampler or PaddleSampler. Errors: theirs.
absl::StatusOr<std::unique_ptr<SamplingSubject>> MakeSubject(
    const SamplingCase& c, int rank);

// Begins the epoch and takes all of its batches. Errors: the subject's, and
// CheckEnds'.
absl::StatusOr<Batches> DrawEpoch(SamplingSubject& subject);

// Adds the batches that are left of an epoch. Errors: CheckEnds'.
absl::Status DrawRest(SamplingSubject& subject, Batches& batches);

// Errors: kDataLoss, of Batches, if there are more than any epoch of the suite
// has.
absl::Status CheckEnds(const Batches& batches);

// The same by each rank of the case, from the start of the epoch. Errors: also
// the factory's; the message names the case and the rank.
absl::StatusOr<std::vector<Batches>> DrawRanks(const SubjectFactory& make,
                                               const SamplingCase& c,
                                               int64_t epoch);

// Where the ranks' batches are first not the wanted ones, as "rank 0, step 1:
// draws 3 4, wanted 3 5".
std::optional<std::string> FirstDifference(const std::vector<Batches>& got,
                                           const std::vector<Batches>& want);
std::optional<std::string> FirstDifference(const Batches& got,
                                           const Batches& want, int rank);

// The error with the case and the rank before its message, or behind that of a
// kDataLoss, which starts with a property; OK stays OK.
absl::Status At(const SamplingCase& c, int rank, const absl::Status& status);

// The kDataLoss of a subject that breaks a property: the only way to make one.
// The second is of a case that the caller adds, with At().
absl::Status Breaks(SamplingProperty property, const SamplingCase& c,
                    const std::string& how);
absl::Status Breaks(SamplingProperty property, const std::string& how);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_SUBJECT_H_
