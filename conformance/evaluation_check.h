// The check behind the claim "N ranks evaluate to what one rank evaluates to".
#ifndef LOCKSTEP_CONFORMANCE_EVALUATION_CHECK_H_
#define LOCKSTEP_CONFORMANCE_EVALUATION_CHECK_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lockstep {

// What a rank reports of some samples.
struct Evaluation {
  double loss = 0;      // The mean over samples.
  double accuracy = 0;  // Likewise.
  int64_t samples = 0;  // How many were counted.
};

// What one rank makes of the data set: of all of it, which is what is due, and
// of each batch, to look for causes in.
struct OneRankEvaluation {
  Evaluation whole;
  std::vector<Evaluation> batches;
};

// Every rank reports the one-rank evaluation, bit for bit. Asks in this order:
//
//   RanksAgree  do all ranks report the same?
//   Samples     is each sample counted once?
//   Loss        is the loss one rank's?
//   Accuracy    is the accuracy?
//
// Error: kDataLoss with one line that starts with the name and says what
// differs and the cause, if one gives what is reported: ranks that report their
// own share, a padded sampler, a partial batch that is left out, means of ranks
// without weights or without samples, or sums rounded on their way. NaN where
// one rank has a number fails.
//
// What gives the same but for rounding is within 2 n * 2^-53 of it: the sum of
// n losses, none of them negative, is within (n - 1) * 2^-53 of itself in any
// order (Higham 2002, section 4.2), either side's, and the division adds one
// rounding to each, to first order.
absl::Status CheckEvaluation(const OneRankEvaluation& want,
                             std::span<const Evaluation> ranks);

// The names above, in that order.
std::vector<std::string> EvaluationChecks();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_EVALUATION_CHECK_H_
