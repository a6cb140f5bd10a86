// The table that the command `syncbn` prints, at most 100 columns wide.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_TABLE_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_TABLE_H_

#include <string>

#include "benchmarks/syncbn/report.h"

namespace lockstep::benchmarks {

// What is measured and where; everything of the report but its layers, network
// and peers is set.
std::string FormatSyncBnHeading(const SyncBnReport& report);

// The title of a set of shapes, with the names of the columns.
std::string FormatShapeSet(const LayerShape& shape);

// The lines of one shape, to be printed as soon as it is measured.
std::string FormatLayer(const LayerReport& layer);

std::string FormatNetwork(const SyncBnSettings& settings,
                          const NetworkReport& network);

// What the columns are, what could not be measured, and the bar, or why none.
std::string FormatSyncBnLegend(const SyncBnReport& report);

// What the columns are, for --help as well.
std::string SyncBnColumns();

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_TABLE_H_
