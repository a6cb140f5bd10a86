// A report to test its formats with.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_EXAMPLE_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_EXAMPLE_H_

#include "benchmarks/all_reduce/report.h"

namespace lockstep::benchmarks {

// Two sizes, our processes in group memory, Open MPI and a missing Gloo, with
// numbers that are easy to check by hand.
AllReduceReport ExampleAllReduceReport();

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_EXAMPLE_H_
