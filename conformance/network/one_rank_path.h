// One rank's steps, what they must give, and what rounding does to them.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_ONE_RANK_PATH_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_ONE_RANK_PATH_H_

#include <vector>

#include "absl/status/statusor.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"

namespace lockstep {

// The steps of RunNetwork on one rank with SyncBatchNorm, which is the same
// arithmetic as on N. N ranks go the same way up to rounding, so that what
// rounding does here is what it does there; and if the arithmetic is bad, bad
// here too, which is what the check Tolerances is there for.
struct OneRankPath {
  NetworkRun run;
  NetworkTrace trace;
  std::vector<NetworkStep> steps;
  std::vector<Rounding> rounding;
};

// mutation: also of the model that rounding is measured on, and so of every
// tolerance. Cost: about a second a step. Errors: the product's.
absl::StatusOr<OneRankPath> TakeOneRankPath(
    int steps, const NetworkMutation& mutation = {});

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_ONE_RANK_PATH_H_
