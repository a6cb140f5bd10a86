// The table that the command `allreduce` prints, at most 100 columns wide.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_TABLE_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_TABLE_H_

#include <cstdint>
#include <string>

#include "benchmarks/all_reduce/report.h"

namespace lockstep::benchmarks {

// What is measured and where, and the names of the columns; everything of the
// report but its sizes is set.
std::string FormatAllReduceHeading(const AllReduceReport& report);

// The lines of one size, to be printed as soon as it is measured.
std::string FormatAllReduceSize(const AllReduceSettings& settings,
                                const AllReduceSize& size);

// What the columns are, and which peers could not be measured.
std::string FormatAllReduceLegend(const AllReduceReport& report);

// "8 B", "4 KiB", "64 MiB", "1 GiB"; bytes where that is not exact, and for ten
// millions or more of them "9.5 MiB".
std::string FormatBytes(int64_t bytes);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_TABLE_H_
