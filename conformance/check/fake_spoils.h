// What can go wrong with a run besides its numbers.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_FAKE_SPOILS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_FAKE_SPOILS_H_

#include "conformance/check/fake_fault.h"
#include "conformance/check/trainer_run.h"

namespace lockstep {

// Makes of a run that ended well what it would be with the fault; leaves it as
// it is where the fault is another kind of mistake.
void SpoilRun(FakeFault fault, TrainerRun& run);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_FAKE_SPOILS_H_
