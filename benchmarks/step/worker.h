// Our side of a timed step: a process that trains the network.
#ifndef LOCKSTEP_BENCHMARKS_STEP_WORKER_H_
#define LOCKSTEP_BENCHMARKS_STEP_WORKER_H_

#include "models/cpu/algorithm.h"

namespace lockstep::benchmarks {

// Answers the lines of turn.h until standard input ends. Each "load" creates a
// new model, which convolves with `convolution`.
void ServeOurSteps(ConvolutionAlgorithm convolution);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_WORKER_H_
