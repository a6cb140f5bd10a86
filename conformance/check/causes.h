// Every cause that the checker can name: what it means and how to mend it.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CAUSES_H_

#include <cstdint>
#include <span>
#include <string>

#include "conformance/check/verdict.h"

namespace lockstep {

// What a sentence about a cause may speak of. Only what a cause needs is read.
struct CauseFacts {
  double k = 1;                   // Of g_N = k * g_1, or of an update.
  int world_size = 1;             // Of the run that is wrong.
  int rank = -1;                  // The one at fault; -1: none in particular.
  int64_t step = 0;               // From 1; 0: none in particular.
  int64_t accumulate = 1;         // Micro-batches of a step.
  std::string tensors = {};       // "W3 (the first linear layer)"; "" for all.
  std::string of = "one rank's";  // What k is a factor of.
};

struct Explanation {
  std::string why;  // One sentence: the likely cause.
  std::string fix;  // One sentence: what to do about it.
};

std::span<const Cause> AllCauses();

// "ranks_shuffle_apart": the name of kRanksShuffleApart.
std::string CauseName(Cause cause);

// Both "" for kNone.
Explanation Explain(Cause cause, const CauseFacts& facts);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CAUSES_H_
