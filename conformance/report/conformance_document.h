// The report on the claims as a document, for a file, a pull request or a page.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_DOCUMENT_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_DOCUMENT_H_

#include "conformance/report/conformance_report.h"
#include "report/document.h"

namespace lockstep::conformance {

// Returns the report for a file or a pull request. Failures come first. The
// table follows, then skipped and missing tests, old or mixed results, and the
// origin. The document's data:
// {"committed", "testlogs", "first_started", "last_started", "versions",
// "totals", "world_sizes",
// "claims": [{"name", "says", "allowed", "test", "outcome", "failed_tests",
//   "rows": [{"backend", "types", "cells": [{"world_size", "outcome",
//     "error_over_allowed", "exact", "cases", "text"}]}],
//   "gpu_rows": [{"backend", "test", "asks", "outcome", "why"}],
//   "missing": [{"backend", "test", "cells", "expected"}]}],
// "failures": [{"target", "test", "what"}], "skipped": [{"target", "tests",
// "why"}], "targets": [{"label", "passed", "failed", "skipped", "seconds",
// "started", "older", "configurations"}]}.
// An outcome is "passed", "in_part", "skipped", "not_run" or "failed";
// error_over_allowed is null for infinity.
report::Document ConformanceDocument(const ConformanceReport& report);

// Returns the same report for a page, which also shows the text of each claim
// and the results of each target.
report::Document ConformancePage(const ConformanceReport& report);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_DOCUMENT_H_
