// How a conformance test says what it measured, so that the report has it.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_

#include <cstdint>
#include <string>

#include "conformance/report/claim_result.h"

namespace lockstep {

// Where a claim is asked.
struct ClaimSubject {
  std::string claim;    // One of KnownClaims().
  std::string backend;  // What carries the ranks.
  int world_size = 1;
  std::string type;  // Of the elements.
};

// One claim of the test that is running, from before anything that could end or
// skip it. At its end it becomes a property of the test's JUnit XML; that the
// claim holds is what the test says, by not failing. A test that passes with a
// claim of which nothing was measured, or which no one knows, fails.
//
// Belongs to the thread, and to the process, that runs the test's body.
class ClaimRecorder {
 public:
  explicit ClaimRecorder(const ClaimSubject& subject);
  ClaimRecorder(const ClaimRecorder&) = delete;
  ClaimRecorder& operator=(const ClaimRecorder&) = delete;
  ~ClaimRecorder();

  // One more case, whose largest error is that many times the allowed one: at
  // most 1 if the claim holds. NaN is an infinity.
  void Measure(double error_over_allowed);

  // More cases in which no error is allowed, and in which the test has asked
  // for the same bits.
  void AddExact(int64_t cases = 1);

 private:
  ClaimResult result_;
  bool measured_ = false;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_
