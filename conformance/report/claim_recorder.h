// How a conformance test says what it measured, so that the report has it.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "conformance/report/claims.h"

namespace lockstep::conformance {

// Where a claim is measured.
struct ClaimPlace {
  std::string claim;    // One of KnownClaims().
  std::string backend;  // What carries the ranks.
  int world_size = 1;
  std::string type;  // Of the elements.
};

// Takes the name and the value of a property.
using PropertySink =
    std::function<void(const std::string& name, const std::string& value)>;

// The JUnit XML of the test that is running.
void RecordInXml(const std::string& name, const std::string& value);

// How this program was built, and whether its tests are filtered: the value of
// kConfigurationProperty.
std::string TestConfiguration();

// Records one claim of the test that is running. Made before anything that
// could end or skip the test; at its own end the claim becomes a property of
// the test's JUnit XML, beside the test's configuration. Whether the claim
// holds is what the test says, by not failing.
//
// The test fails if it would pass without having measured anything of the
// claim, if the claim is not one of KnownClaims(), or if it measures an error
// where the claim allows none, or none where it allows one.
//
// Belongs to the thread, and to the process, that runs the test's body.
class ClaimRecorder {
 public:
  // `sink`: another place for the properties, for the recorder's own test.
  explicit ClaimRecorder(const ClaimPlace& place,
                         PropertySink sink = RecordInXml);
  ClaimRecorder(const ClaimRecorder&) = delete;
  ClaimRecorder& operator=(const ClaimRecorder&) = delete;
  ~ClaimRecorder();

  // Adds a case, whose largest error is that many times the allowed one: at
  // most 1 if the claim holds. NaN counts as an infinity. Only for a claim that
  // allows an error.
  void Measure(double error_over_allowed);

  // Adds cases in which the test has compared bits. Only for a claim that
  // allows no error.
  void AddExact(int64_t cases = 1);

 private:
  // Expects that the claim, if it is known, is of this kind.
  void ExpectKind(bool exact);

  ClaimResult result_;
  bool known_ = false;
  PropertySink sink_;
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_
