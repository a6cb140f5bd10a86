// Planted bugs of data-parallel training with batch norm: each a mistake that
// somebody has made, put around the product's parts and never inside them.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_

#include <set>
#include <string>
#include <vector>

#include "conformance/network/network_run.h"

namespace lockstep {

struct NetworkMutant {
  std::string name;
  std::string bug;  // What is wrong, in a phrase.
  NetworkRun run;   // One in which it shows.
  NetworkMutation mutation;
  // The names of exactly the checks (CheckNetwork) that reject it.
  std::set<std::string> caught_by;
  // A check among them, and what it says.
  std::string check, says;
  // Whether the one rank that rounding is measured on has the bug too: bad
  // arithmetic, which widens the tolerances.
  bool everywhere = false;
};

std::vector<NetworkMutant> NetworkMutants();
// Those of them that are `everywhere`.
std::vector<NetworkMutant> ArithmeticMutants();

// A rank without samples leaves the model's step out, as one that has nothing
// to compute. No run of it ends well.
NetworkMutation SkipWhereEmpty();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
