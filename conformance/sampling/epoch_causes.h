// The causes of wrong epochs.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CAUSES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "conformance/sampling/tested_sampler.h"

namespace lockstep::conformance {

// One epoch of a case, as the sampler drew it.
struct DrawnEpoch {
  const SamplerFactory& make;
  const SamplingCase& c;
  int64_t epoch;
  const std::vector<Batches>& ranks;
  // The whole epoch, as one rank draws it.
  const std::vector<int64_t>& one_rank;
  // All epochs of the case, each as one rank draws it.
  std::span<const std::vector<int64_t>> epochs = {};
};

// Each function returns "; ..." for the first cause that gives every index of
// the epoch, on every rank and in its place, or "". A function with another
// measure says so.

// Explains a rank with a wrong number of indices. Without a cause, returns the
// indices that no rank draws.
std::string CauseOfLengths(const DrawnEpoch& drawn);

// Explains an index on two ranks that is not padding.
std::string CauseOfSharing(const DrawnEpoch& drawn);

// Explains an index that does not exist.
std::string CauseOfIndex(const DrawnEpoch& drawn);

// Explains an index that no rank draws, by the index that comes most often.
// Also says whether it comes in place of the missing one: one index is missing,
// and one comes twice. Precondition: all drawn indices exist.
std::string CauseOfAbsence(const DrawnEpoch& drawn);

// Explains an index that comes too often. Compares how often each index comes,
// on any rank and in any place.
std::string CauseOfPadding(const DrawnEpoch& drawn);

// Explains a wrong shuffle, by one rank's order.
std::string CauseOfOrder(const DrawnEpoch& drawn);

// Explains ranks that are not dealt one rank's order.
std::string CauseOfDeal(const DrawnEpoch& drawn);

// Returns how often each index of the data set is drawn. Precondition: all
// drawn indices exist.
std::vector<int64_t> CountsOf(const DrawnEpoch& drawn);

// Returns the indices of a rank's batches, in their order.
std::vector<int64_t> Flat(const Batches& batches);

// Returns, for example, "index 7" or "indices 3, 4, 9". For many indices,
// returns their number and the first.
std::string Indices(const std::vector<int64_t>& indices);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CAUSES_H_
