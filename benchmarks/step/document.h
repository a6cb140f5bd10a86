// The report of the command `step` as a document: tables, JSON, charts and
// terms from the results.
#ifndef LOCKSTEP_BENCHMARKS_STEP_DOCUMENT_H_
#define LOCKSTEP_BENCHMARKS_STEP_DOCUMENT_H_

#include <vector>

#include "benchmarks/step/results.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// Explains the columns and the bars.
std::vector<report::Term> StepTerms();

// Returns the report as a document. README.md lists the keys of its JSON.
// finished: whether everything is measured. If not, the document has only the
// tables.
report::Document StepDocument(const StepReport& report, bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_DOCUMENT_H_
