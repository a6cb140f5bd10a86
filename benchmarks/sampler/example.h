// A report whose numbers can be worked out by hand.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_EXAMPLE_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_EXAMPLE_H_

#include "benchmarks/sampler/measure.h"
#include "benchmarks/sampler/report.h"

namespace lockstep::benchmarks {

// 1,281,167 samples: torch in 4 ms, paddle in 8, PyTorch in 100, the table in 2
// (medians of 3 rounds).
MeasuredEpoch ExampleEpoch();

// That size, and the keyed order at 80 million indices a second in 256 KiB.
SamplerReport ExampleReport();

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_EXAMPLE_H_
