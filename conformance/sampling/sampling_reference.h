// The expected orders of samples, directly from the definitions: lists, padding
// and places in an epoch.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_REFERENCE_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "conformance/sampling/tested_sampler.h"

namespace lockstep::conformance {

// One list of indices per rank.
using Lists = std::vector<std::vector<int64_t>>;

// Returns the number of entries that pad the data set to a multiple of the
// world size, or 0 if it is not padded.
int64_t PaddingOf(const SamplingCase& c);

// Returns how many indices a rank draws in an epoch before batches are dropped.
int64_t LengthOf(const SamplingCase& c, int rank);

// Returns the number of steps of an epoch. 0 if drop_tail or drop_last leaves
// nothing; samplers refuse such a case.
int64_t StepsOf(const SamplingCase& c);

// Returns the order of an epoch: of the samples (kTorch, kExact), or of the
// padded data set (kPaddle, which pads first). Precondition: no keyed shuffle,
// which only its own code defines.
std::vector<int64_t> ReferenceOrder(const SamplingCase& c, int64_t epoch);

// Returns `order` as it is dealt. kTorch and kPaddle pad it from its start,
// repeatedly if needed, or cut it, to a multiple of the world size. kExact
// keeps it.
std::vector<int64_t> PadOrCut(const SamplingCase& c,
                              const std::vector<int64_t>& order);

// Deals an order that PadOrCut returned, sample by sample. kPaddle deals batch
// by batch, and the tail in equal parts.
Lists Deal(const SamplingCase& c, const std::vector<int64_t>& order);

// Cuts each rank's list into batches. All ranks get the same number of batches.
std::vector<Batches> Cut(const SamplingCase& c, const Lists& lists);

// A place in an epoch, by the definition of resuming.
class EpochPosition {
 public:
  // The place where the ranks of the case begin an epoch of that order.
  EpochPosition(const SamplingCase& c, int64_t epoch,
                const std::vector<int64_t>& order);

  // Returns what these ranks draw from here on.
  std::vector<Batches> RemainingBatches() const;

  // Returns the ranks' place after so many steps.
  EpochPosition After(int64_t steps) const;

  // Whether ranks of `c` continue with the indices that these ranks were dealt,
  // padding included. Otherwise the remaining samples are dealt anew.
  bool IsContinuedBy(const SamplingCase& c) const;

  // Returns the place where ranks of `c` continue from here. At the start of an
  // epoch they begin their own.
  EpochPosition TakenOverBy(const SamplingCase& c) const;

  // Returns the samples that no rank has visited, in their order, each once.
  std::vector<int64_t> Unvisited() const;

 private:
  SamplingCase case_;
  int64_t epoch_;
  // The samples that were unvisited when these ranks took over.
  std::vector<int64_t> order_;
  Lists dealt_;  // The indices that each rank was dealt, padding included.
  // The number of indices that each rank has visited since.
  int64_t visited_ = 0;
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_REFERENCE_H_
