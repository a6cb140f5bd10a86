// A made-up report for the tests of what shows reports.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_EXAMPLE_H_
#define LOCKSTEP_BENCHMARKS_SCALING_EXAMPLE_H_

#include "benchmarks/scaling/report.h"

namespace lockstep::benchmarks {

// Strong and weak scaling of batches of 256 at 1, 2 and 4 ranks on two cores, 3
// rounds of 2 steps. At 1 rank a step takes 40 ms; at 2, 25 ms (strong) and 50
// ms (weak).
ScalingReport ExampleReport();

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_EXAMPLE_H_
