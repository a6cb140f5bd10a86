// What wrong epochs, and wrong resumptions of one, look like: the causes that
// would give them.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_CAUSES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/sampling/sampling_reference.h"
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

// One rank's batches after a stop, which are not those that were left.
struct WrongResume {
  const SamplerFactory& make;
  const SamplingCase& c;
  int rank;
  int64_t epoch;
  size_t step;           // After which the epoch was stopped.
  const Batches& whole;  // The epoch's.
  const Batches& got;
};

// ", as if ..." where one of these gives every index, else "": a batch again; a
// batch skipped; the same place of the epoch before or after.
std::string CauseOfResume(const WrongResume& wrong);

// The same of a whole epoch that is set after the one before was stopped after
// `step` and gone on with: it begins there; it is still the one before.
std::string CauseOfNextEpoch(const WrongResume& wrong);

// Ranks that go on with an epoch that others stopped. Borrows all of it.
struct TakeOver {
  const EpochPlace& start;          // Of the epoch.
  const SamplingCase& last;         // Who stopped, ...
  int64_t steps;                    // ... after how many steps of theirs, ...
  const EpochPlace& stopped;        // ... and where.
  const SamplingCase& next;         // Who goes on.
  const std::vector<Batches>& got;  // What they draw.
};

// What is wrong with that, or none; then "; as if ..." where one of these gives
// every index: the epoch begun anew; what was visited before the last ranks
// forgotten; as many samples of each rank taken as visited as each had before.
std::optional<std::string> WrongTakeOver(const TakeOver& take_over);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_CAUSES_H_
