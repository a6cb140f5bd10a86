// The scaling report for a terminal.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_TABLE_H_
#define LOCKSTEP_BENCHMARKS_SCALING_TABLE_H_

#include <string>

#include "benchmarks/scaling/report.h"

namespace lockstep::benchmarks {

// Plain text of kTableColumns columns; only a word or a command longer than
// that goes beyond: what was run where, a table for each mode with what limits
// it, and what the columns mean.
std::string FormatScalingTable(const ScalingReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_TABLE_H_
