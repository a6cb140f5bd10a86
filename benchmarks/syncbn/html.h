// The SyncBN report as one HTML file that needs no other.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_HTML_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_HTML_H_

#include <string>

#include "benchmarks/syncbn/report.h"

namespace lockstep::benchmarks {

// The page of syncbn_page.html with its script, Chart.js and the report's JSON
// inside. It loads nothing.
std::string FormatSyncBnHtml(const SyncBnReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_HTML_H_
