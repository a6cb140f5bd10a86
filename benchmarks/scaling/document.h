// The scaling report as a document: tables, JSON and charts from the results.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_DOCUMENT_H_
#define LOCKSTEP_BENCHMARKS_SCALING_DOCUMENT_H_

#include "benchmarks/scaling/results.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// Returns the report as a document. README.md lists the keys of its JSON.
report::Document ScalingDocument(const ScalingReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_DOCUMENT_H_
