// All planted bugs in one list.
#include "conformance/mutants/mutants.h"

#include <utility>
#include <vector>

namespace lockstep {

std::vector<Mutant> AllMutants() {
  std::vector<Mutant> all = CommunicatorMutants();
  for (Mutant& mutant : ModelMutants()) all.push_back(std::move(mutant));
  for (Mutant& mutant : SamplerMutants()) all.push_back(std::move(mutant));
  return all;
}

}  // namespace lockstep
