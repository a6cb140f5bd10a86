// A small run of tests, for the tests of reports.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_SAMPLE_REPORT_H_
#define LOCKSTEP_CONFORMANCE_REPORT_SAMPLE_REPORT_H_

#include <string>
#include <vector>

#include "conformance/report/claims.h"
#include "conformance/report/conformance_report.h"
#include "conformance/report/test_logs.h"

namespace lockstep {

// "sums", which allows a rounding: on threads (float32 at 1 and 2 ranks,
// float16 and float64 at 1), processes (float32 at 2) and a GPU. "bits", which
// allows nothing: on threads and mpi (float32 at 4). "absent", which allows
// nothing: on threads.
const std::vector<KnownClaim>& SampleClaims();

// Of ten cases.
ClaimResult SampleClaim(const std::string& name, const std::string& backend,
                        int world_size, const std::string& type, double error,
                        bool exact = false);

// A test of half a second that recorded the claims.
TestCaseResult SampleCase(const std::string& name, TestOutcome outcome,
                          const std::vector<ClaimResult>& claims,
                          const std::string& message = "");

// Begun at midnight and, its last shard, a minute later.
TestTarget SampleTarget(const std::string& label,
                        std::vector<TestCaseResult> cases);

// Sums fail on processes, and hold on threads at one rank; bits hold on threads
// and are skipped on mpi; all else was not run.
ConformanceReport SampleReport();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_SAMPLE_REPORT_H_
