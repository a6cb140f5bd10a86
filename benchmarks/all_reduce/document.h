// The report of the command `allreduce` as a document: a table, JSON, charts
// and bars from the results.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_DOCUMENT_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_DOCUMENT_H_

#include <span>

#include "benchmarks/all_reduce/results.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// Returns one document of reports that differ in world size, type and place, in
// order. README.md lists the keys of its JSON. Keys of a result that nccl-tests
// has too have its names, units and values: times in microseconds, bandwidths
// in GB/s, types "float", "half", ... `finished`: whether all sizes are
// measured. Until then, the document ends with the table.
report::Document AllReduceDocument(std::span<const AllReduceReport> reports,
                                   bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_DOCUMENT_H_
