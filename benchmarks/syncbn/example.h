// A made-up SyncBN report, for tests of what is made of reports.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_EXAMPLE_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_EXAMPLE_H_

#include "benchmarks/syncbn/measure.h"
#include "benchmarks/syncbn/report.h"

namespace lockstep::benchmarks {

// Turns of a layer of which everything takes `seconds` or a simple part of it:
// local BN 1 forward and 2 backward, SyncBN 1.25 and 2, its message 0.25 each,
// PyTorch 2 and 3, a copy of two tensors 1.
MeasuredTurns ExampleTurns(double seconds, bool torch);

// A layer of ResNet-18 that misses the bar, one of the detection set without
// PyTorch and local BN, and the network.
SyncBnReport ExampleSyncBnReport();

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_EXAMPLE_H_
