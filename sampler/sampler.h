// What every sampler is to the code that trains with it.
#ifndef LOCKSTEP_SAMPLER_SAMPLER_H_
#define LOCKSTEP_SAMPLER_SAMPLER_H_

#include <cstdint>
#include <vector>

namespace lockstep {

// One rank's view of which samples an epoch visits, and in which order. Ranks
// never talk to each other about it: samplers that were created alike, but for
// the rank, and given the same epoch agree by construction. Thread compatible:
// const calls may run at once, SetEpoch needs exclusion.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Chooses the epoch that the following calls of Indices describe. Every rank
  // must set the same one; without a call it is epoch 0.
  virtual void SetEpoch(int64_t epoch) = 0;

  // This rank's sample indices of the epoch, in the order in which it visits
  // them; the same list on every call until the epoch changes.
  virtual std::vector<int64_t> Indices() const = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_SAMPLER_H_
