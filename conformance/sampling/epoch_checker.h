// Holds the whole epochs of a sampler to its semantics.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CHECKER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_subject.h"

namespace lockstep {

// Draws epochs 0, 1 and 2 of the case on every rank and asks, in this order:
//
//   Guards        are impossible options refused, each by its name?
//   Batches       are batches whole but for the last, of all ranks the same
//                 number, and as many as num_batches() says?
//   Lengths       does each rank draw as many indices as it should?
//   Disjointness  does no index come on two ranks, but for padding?
//   Coverage      does every index come (drop: every index but those dropped)?
//   Padding       are the indices that come again the right ones?
//   Deal          are the ranks dealt the order that one rank has?
//   EpochsDiffer  does every epoch have an order of its own if shuffled?
//   SeedsDiffer   does another seed?
//   Order         is it, index for index, what the reference draws?
//   RepeatedDraw  does a second draw without SetEpoch do what it should?
//
// Errors: kDataLoss, starting with the name, if the answer is no; otherwise
// what the subject gave.
absl::Status CheckEpochs(const SubjectFactory& make, const SamplingCase& c);

// The names above, in that order.
std::vector<std::string> EpochProperties();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_CHECKER_H_
