// The command `mutants`: plants known bugs and shows what the checks say.
#ifndef LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_
#define LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_

#include <span>

#include "conformance/mutants/planted_bug.h"

namespace lockstep {

// Plants the bugs of `suites` that the flags in `argv` ask for, each as it is
// printed; returns the exit status. --help says what flags there are.
int MutantsCommand(std::span<char* const> argv,
                   std::span<const BugSuite> suites);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_MUTANTS_MUTANTS_COMMAND_H_
