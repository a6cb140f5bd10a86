// What every sampler is to the code that trains with it.
#ifndef LOCKSTEP_SAMPLER_SAMPLER_H_
#define LOCKSTEP_SAMPLER_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sampler/epoch_indices.h"
#include "sampler/sampler_state.h"

namespace lockstep {

// One rank's view of which samples an epoch visits, and in which order. Ranks
// never talk to each other about it: samplers that were created alike, but for
// the rank, and given the same epoch agree by construction. Not thread safe.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Chooses the epoch that is drawn next, from its start. Every rank must set
  // the same one; without a call the first draw is of epoch 0.
  virtual void SetEpoch(int64_t epoch) = 0;

  // This rank's sample indices of the epoch, in the order in which it visits
  // them. Errors: kFailedPrecondition where an epoch may be drawn only once
  // (RepeatedDraw); the sampler's own.
  virtual absl::StatusOr<std::vector<int64_t>> Indices() = 0;
};

// What a second draw does when no SetEpoch came since the first.
enum class RepeatedDraw {
  kRefuse,   // kFailedPrecondition: the call was forgotten, most likely, and
             // every epoch would have the same order. An order that does not
             // depend on the epoch may be drawn again.
  kAdvance,  // Draws the next epoch, as Paddle's sampler does.
  kAllow,    // Draws the same epoch again, from its start.
};

// How many samples the ranks have left in an epoch.
struct SampleCounts {
  int64_t own = 0;     // This rank.
  int64_t fewest = 0;  // The rank with the fewest, and
  int64_t most = 0;    // the one with the most.

  friend bool operator==(const SampleCounts&, const SampleCounts&) = default;
};

// A sampler that can stop in the middle of an epoch and go on later, in another
// process and at another world size. All but SplitBatchSampler are.
class ResumableSampler : public Sampler {
 public:
  // The epoch that was set, restored or drawn last.
  virtual int64_t epoch() const = 0;

  // What is left of that epoch where it was set or restored, so the lengths of
  // what Draw gives the ranks. Cost: O(1).
  virtual SampleCounts Counts() const = 0;

  // As Indices, without holding in memory what can be computed.
  virtual absl::StatusOr<EpochIndices> Draw() = 0;

  // Draw, in memory. Errors: also kResourceExhausted above 2^31 - 1 indices.
  absl::StatusOr<std::vector<int64_t>> Indices() override;

  // The state once every rank has visited the first `visited` of the indices
  // that Draw gave it (all, if it has fewer). The same on every rank, so any
  // rank's copy resumes all. Errors: kInvalidArgument if visited < 0, or if it
  // is no place where all ranks can stop together.
  virtual absl::StatusOr<SamplerState> StateAfter(int64_t visited) const = 0;

  // Goes on from a state that a sampler of the same data set, order and seed
  // gave, at this or another world size. At the same one Draw then gives
  // exactly what was left; at another, the samples that no rank had visited are
  // dealt to the ranks there are now. Errors: kInvalidArgument if the state is
  // of another order or impossible; the sampler is then as before.
  virtual absl::Status Restore(const SamplerState& state) = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_SAMPLER_H_
