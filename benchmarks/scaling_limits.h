// What limits scaling, said from the measured parts of a step.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_LIMITS_H_
#define LOCKSTEP_BENCHMARKS_SCALING_LIMITS_H_

#include <string>

#include "benchmarks/scaling_report.h"

namespace lockstep {

// A few sentences about the largest world size that has a core for each
// rank (or the largest, if none but the baseline has): its efficiency, what
// each part of a step takes from it, and what makes the numbers doubtful, if
// anything does: ranks that share cores or are kept from them, imbalance,
// rounds that differ. `report.limits` is not read. cores: those that the ranks
// could use.
std::string DescribeLimits(const ModeReport& report, int cores);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_SCALING_LIMITS_H_
