// The rows that a whole run of the tests has, so that a backend of which no
// test left a result is seen to be missing.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_EXPECTED_ROWS_H_
#define LOCKSTEP_CONFORMANCE_REPORT_EXPECTED_ROWS_H_

#include <string>
#include <vector>

namespace lockstep {

// A claim on a backend.
struct ExpectedRow {
  std::string claim;  // One of KnownClaims().
  std::string backend;
  std::string test;     // The label of a test that asks it there.
  std::string skipped;  // Why that test records nothing; "" if it does.
};

const std::vector<ExpectedRow>& ExpectedRows();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_EXPECTED_ROWS_H_
