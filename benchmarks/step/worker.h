// Our own side of a timed step: a process that trains the network.
#ifndef LOCKSTEP_BENCHMARKS_STEP_WORKER_H_
#define LOCKSTEP_BENCHMARKS_STEP_WORKER_H_

namespace lockstep::benchmarks {

// Answers the lines of step.h with one Model after another, until standard
// input ends.
void ServeOurSteps();

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_WORKER_H_
