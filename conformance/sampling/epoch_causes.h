// What wrong epochs look like: the causes that would give them.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CAUSES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/sampling/tested_sampler.h"

namespace lockstep {

// One epoch of a case, as the sampler drew it.
struct DrawnEpoch {
  const SamplerFactory& make;
  const SamplingCase& c;
  int64_t epoch;
  const std::vector<Batches>& ranks;
  const std::vector<int64_t>& one_rank;  // The whole of it, as one rank draws.
};

// Each returns "; ..." for the first cause that gives every index of the
// epoch, on every rank and in its place, or else "", but where another measure
// is named.

// A rank with another number of indices than it should have: the tail dropped,
// not padded; padded, not dropped; all of it on one rank; padded where nothing
// is; padding that does not go round. Else, whatever gave them, the indices
// that nobody draws.
std::string CauseOfLengths(const DrawnEpoch& drawn);

// An index on two ranks, not as padding: the same shard on all, right or not;
// one index in place of another, all others right; a shuffle by each rank's own
// seed, its number more.
std::string CauseOfSharing(const DrawnEpoch& drawn);

// An index that does not exist: all of them counted from 1, by one rank alone
// too.
std::string CauseOfIndex(const DrawnEpoch& drawn);

// An index that nobody draws: the one that comes most often, and whether it
// comes once more than the others, in place of the only one that is lost.
// Precondition: all that are drawn exist.
std::string CauseOfAbsence(const DrawnEpoch& drawn);

// An index that comes more often than it should: the end of the order repeated,
// not its start; the data set padded, not the order; the order, not the data
// set. By how often each index comes, wherever.
std::string CauseOfPadding(const DrawnEpoch& drawn);

// A shuffle that is not the wanted one: the keyed one, by one rank's order.
std::string CauseOfOrder(const DrawnEpoch& drawn);

// Ranks that are not dealt the order of one: from the last to the first; in
// contiguous parts; one by one, not by the batch.
std::string CauseOfDeal(const DrawnEpoch& drawn);

// How often each index of the data set is drawn. Precondition: they exist.
std::vector<int64_t> CountsOf(const DrawnEpoch& drawn);

// The indices of a rank's batches, in their order.
std::vector<int64_t> Flat(const Batches& batches);

// "index 7"; "indices 3, 4, 9"; of many, the first and how many.
std::string Indices(const std::vector<int64_t>& indices);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CAUSES_H_
