// How a conformance test says what it measured, so that the report has it.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "conformance/report/claims.h"

namespace lockstep {

// Where a claim is asked.
struct ClaimPlace {
  std::string claim;    // One of KnownClaims().
  std::string backend;  // What carries the ranks.
  int world_size = 1;
  std::string type;  // Of the elements.
};

// TODO: gone once no test of conformance says ClaimSubject.
using ClaimSubject = ClaimPlace;

// Takes the name and the value of a property.
using PropertySink =
    std::function<void(const std::string& name, const std::string& value)>;

// The JUnit XML of the test that is running.
void RecordInXml(const std::string& name, const std::string& value);

// How this program was built, and whether its tests are filtered: the value of
// kConfigurationProperty.
std::string TestConfiguration();

// One claim of the test that is running, from before anything that could end or
// skip it. At its end it becomes a property of the test's JUnit XML, beside the
// test's configuration; that the claim holds is what the test says, by not
// failing. A test fails that passes with a claim of which nothing was measured,
// that names one which no one knows, or that measures an error of one of which
// none is allowed, or the other way round.
//
// Belongs to the thread, and to the process, that runs the test's body.
class ClaimRecorder {
 public:
  // `sink`: another place for the properties, for the recorder's own test.
  explicit ClaimRecorder(const ClaimPlace& subject,
                         PropertySink sink = RecordInXml);
  ClaimRecorder(const ClaimRecorder&) = delete;
  ClaimRecorder& operator=(const ClaimRecorder&) = delete;
  ~ClaimRecorder();

  // One more case, whose largest error is that many times the allowed one: at
  // most 1 if the claim holds. NaN is an infinity. Of a claim that allows an
  // error alone.
  void Measure(double error_over_allowed);

  // More cases in which no error is allowed, and in which the test has asked
  // for the same bits. Of a claim that allows no error alone.
  void AddExact(int64_t cases = 1);

 private:
  // That the claim, if it is known, is of this kind.
  void ExpectKind(bool exact);

  ClaimResult result_;
  bool known_ = false;
  PropertySink sink_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_
