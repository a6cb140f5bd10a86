// The command `mutants`, with every folder's mutants.
#include <cstddef>

#include "conformance/mutants/mutants_command.h"

int main(int argc, char** argv) {
  return lockstep::conformance::MutantsCommand(
      {argv, static_cast<size_t>(argc)},
      lockstep::conformance::AllMutantSuites());
}
