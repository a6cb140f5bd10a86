// The table that the command `sampler` prints, at most 100 columns wide.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_TABLE_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_TABLE_H_

#include <cstdint>
#include <string>

#include "benchmarks/sampler/report.h"

namespace lockstep::benchmarks {

// What is measured and where, and the names of the columns; everything of the
// report but its numbers is set.
std::string FormatSamplerHeading(const SamplerReport& report);

// The lines of one size, to be printed as soon as it is measured.
std::string FormatDrawRows(const DrawRows& rows);

std::string FormatKeyedRow(const KeyedRow& row);

// What the columns are, why PyTorch is missing, and whether the bars are met.
std::string FormatSamplerLegend(const SamplerReport& report);

// "1,281,167".
std::string FormatCount(int64_t count);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_TABLE_H_
