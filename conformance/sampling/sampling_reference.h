// What samplers must draw, computed plainly from the definitions: the whole
// epoch of all ranks in lists, no code of sampler/.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_REFERENCE_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "conformance/sampling/tested_sampler.h"

namespace lockstep {

using Lists = std::vector<std::vector<int64_t>>;  // One of indices per rank.

// How many entries make the data set a multiple of the world size where it is
// padded; else 0.
int64_t PaddingOf(const SamplingCase& c);

// How many indices a rank draws in an epoch before batches are dropped.
int64_t LengthOf(const SamplingCase& c, int rank);

// The steps of an epoch; none if drop_tail or drop_last leaves nothing, which
// samplers refuse.
int64_t StepsOf(const SamplingCase& c);

// The order of an epoch: of the samples (kTorch, kExact), or of the padded
// data set (kPaddle, which pads first). Precondition: no keyed shuffle, which
// is defined by its own code.
std::vector<int64_t> ReferenceOrder(const SamplingCase& c, int64_t epoch);

// `order` as it is dealt: padded from its start, round and round, or cut, to a
// multiple of the world size; or as it is (kExact).
std::vector<int64_t> PadOrCut(const SamplingCase& c,
                              const std::vector<int64_t>& order);

// Deals an order that PadOrCut gave: in turn, one by one; or a batch at a time,
// and the tail in equal parts (kPaddle).
Lists Deal(const SamplingCase& c, const std::vector<int64_t>& order);

// Cuts each rank's list into batches, of all ranks the same number.
std::vector<Batches> Cut(const SamplingCase& c, const Lists& lists);

// A place in an epoch, as the definition of resuming has it.
class EpochPlace {
 public:
  // Where the ranks of the case begin an epoch of that order.
  EpochPlace(const SamplingCase& c, int64_t epoch,
             const std::vector<int64_t>& order);

  // What these ranks draw from here on.
  std::vector<Batches> Rest() const;

  // Where they are after so many steps.
  EpochPlace After(int64_t steps) const;

  // Whether ranks of that case go on with what these were dealt, padding and
  // all, instead of dealing what is left anew.
  bool IsContinuedBy(const SamplingCase& c) const;

  // Where ranks of that case go on from here. At the start of an epoch they
  // begin their own.
  EpochPlace TakenOverBy(const SamplingCase& c) const;

  // The samples that nobody has visited, in the order they had, each once.
  std::vector<int64_t> Unvisited() const;

 private:
  EpochPlace(const SamplingCase& c, int64_t epoch, std::vector<int64_t> order,
             Lists dealt);

  SamplingCase case_;
  int64_t epoch_;
  std::vector<int64_t> order_;  // Unvisited when these ranks took over.
  Lists dealt_;                 // Of it.
  int64_t visited_ = 0;         // By each rank since.
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_REFERENCE_H_
