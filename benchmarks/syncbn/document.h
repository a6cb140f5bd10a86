// The report of the command `syncbn` as a document: tables, JSON, charts and
// bars from the results.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_DOCUMENT_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_DOCUMENT_H_

#include <vector>

#include "benchmarks/syncbn/results.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// Returns what the columns of a layer are; --help shows them too.
std::vector<report::Term> SyncBnTerms();

// Returns the document of the report; benchmarks/README.md lists the keys of
// its JSON. `finished`: whether everything is measured. Without it the parts
// below the tables are left out.
report::Document SyncBnDocument(const SyncBnReport& report,
                                bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_DOCUMENT_H_
