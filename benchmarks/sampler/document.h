// The report of the command `sampler` as a document: a table, JSON, a chart and
// text from the results.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_DOCUMENT_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_DOCUMENT_H_

#include "benchmarks/sampler/results.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// Returns the report's document. README.md lists the keys of its JSON.
// `finished`: whether all is measured. Until then, the document ends with the
// table.
report::Document SamplerDocument(const SamplerReport& report,
                                 bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_DOCUMENT_H_
