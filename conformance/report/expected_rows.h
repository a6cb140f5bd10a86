// The cells that a whole run of the tests has, so that one of which no test
// left a result is seen to be missing, and one that nobody expects to be wrong.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_EXPECTED_ROWS_H_
#define LOCKSTEP_CONFORMANCE_REPORT_EXPECTED_ROWS_H_

#include <string>
#include <vector>

namespace lockstep {

// What one test records of a claim on a backend: a cell of each type at each
// world size. Several rows may have the same claim and backend, and then even
// the same cells: each test has to record its own.
struct ExpectedRow {
  std::string claim;  // One of KnownClaims().
  std::string backend;
  std::string test;  // The label of the test.
  std::vector<std::string> types;
  std::vector<int> world_sizes;
  // What a test asks that needs a GPU and so runs with --config=cuda alone. It
  // records nothing: it has neither types nor world sizes, and passes or fails
  // as a whole. "" for any other test.
  std::string gpu_asks = {};
};

const std::vector<ExpectedRow>& ExpectedRows();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_EXPECTED_ROWS_H_
