// Whole epochs of one rank, each wrong in one respect that no option has: the
// draws of the mutants.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_WRONG_DRAWS_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_WRONG_DRAWS_H_

#include <cstdint>

#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {

// Padding is the end of the order, the last sample first.
Batches PadFromTheEnd(const SamplingCase& c, int rank, int64_t epoch);
// Padding ends where the order does, too short where it should go round again.
Batches PadOnce(const SamplingCase& c, int rank, int64_t epoch);
// The data set is padded, then shuffled.
Batches PadFirst(const SamplingCase& c, int rank, int64_t epoch);
// The data set is shuffled, then padded.
Batches PadLast(const SamplingCase& c, int rank, int64_t epoch);
// A rank takes a contiguous part of the order.
Batches StrideByBlocks(const SamplingCase& c, int rank, int64_t epoch);
// kPaddle deals single samples.
Batches DealOneByOne(const SamplingCase& c, int rank, int64_t epoch);
// kPaddle does not split the tail. Precondition: it fits in a batch.
Batches GiveTheTailToTheLast(const SamplingCase& c, int rank, int64_t epoch);
// Nobody draws the last sample of the order.
Batches LoseTheLast(const SamplingCase& c, int rank, int64_t epoch);
// Rank 1 draws rank 0's first sample, not its own.
Batches DrawAnothersFirst(const SamplingCase& c, int rank, int64_t epoch);
// Rank 0 draws its first sample again, not its second.
Batches DrawTheFirstTwice(const SamplingCase& c, int rank, int64_t epoch);
// The last place of the order is not shuffled.
Batches LeaveTheLast(const SamplingCase& c, int rank, int64_t epoch);
// Each index is the next one's.
Batches DrawTheNextIndex(const SamplingCase& c, int rank, int64_t epoch);
// A rank without samples for a step does not take it.
Batches PartEarly(const SamplingCase& c, int rank, int64_t epoch);

// From a state on, at another world size. Preconditions: not kPaddle, nothing
// is dropped.
//
// What is left is dealt from its end.
Batches ReverseTheRest(const SamplingCase& c, int rank,
                       const SamplerState& state);
// Each rank draws one index of padding too many.
Batches PadTheRestTwice(const SamplingCase& c, int rank,
                        const SamplerState& state);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_WRONG_DRAWS_H_
