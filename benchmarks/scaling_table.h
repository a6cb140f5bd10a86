// The scaling report for a terminal.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_TABLE_H_
#define LOCKSTEP_BENCHMARKS_SCALING_TABLE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "benchmarks/scaling_report.h"

namespace lockstep {

// The report's width; only a word or a command longer than that goes beyond.
inline constexpr int kTableColumns = 100;

// Plain text: what was run where, a table for each mode with what limits it,
// and what the columns mean.
std::string FormatScalingTable(const ScalingReport& report);

// `text` with line ends in place of spaces so that no line is longer than
// `columns`, as far as its words allow. Ends in a line end.
std::string WrapText(absl::string_view text, int columns);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_SCALING_TABLE_H_
