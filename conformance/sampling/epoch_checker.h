// Checks that a sampler follows its semantics in whole epochs.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CHECKER_H_

#include "absl/status/status.h"
#include "conformance/sampling/tested_sampler.h"

namespace lockstep::conformance {

// Draws epochs 0, 1 and 2 of the case on every rank, and checks in this order:
//
//   Guards        Impossible options are refused, each by its name.
//   Batches       All batches but the last are full. All ranks have the same
//                 number of batches, which is num_batches().
//   Lengths       Each rank draws as many indices as it should.
//   Disjointness  No index comes on two ranks, except as padding.
//   Coverage      Every index comes, except those that a drop option drops.
//   Padding       The indices that come again are the right ones.
//   Deal          The ranks are dealt the order that one rank has.
//   EpochsDiffer  If shuffled, every epoch has its own order.
//   SeedsDiffer   Another seed gives another order.
//   Order         The order is the reference's, index for index.
//   RepeatedDraw  A second draw without SetEpoch does what it should.
//
// Errors: kDataLoss, which starts with the property's name, if a check fails;
// otherwise the sampler's error.
absl::Status CheckEpochs(const SamplerFactory& make, const SamplingCase& c);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CHECKER_H_
