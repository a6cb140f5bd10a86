// The launchers of other projects that a test may find on its machine.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_TESTING_FIND_LAUNCHERS_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_TESTING_FIND_LAUNCHERS_H_

#include <string>
#include <vector>

namespace lockstep {

// The command that starts `nproc` ranks of the program that is put behind it;
// empty if there is none here. Sets HOME for this process and its children if
// it is not set, since Open MPI needs it, and has Open MPI keep the memory that
// ranks share in the test's own folder. Cost: starting the launcher once,
// which for torchrun takes seconds; so keep the result.
std::vector<std::string> FindMpirun(int nproc);  // Open MPI's.
std::vector<std::string> FindTorchrun(int nproc);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_TESTING_FIND_LAUNCHERS_H_
