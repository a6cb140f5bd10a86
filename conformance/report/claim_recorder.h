// Records the measurements of a conformance test for the report.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "conformance/report/claims.h"

namespace lockstep::conformance {

// The cell of a claim in which a test measures it.
struct ClaimCellId {
  std::string claim;    // One of KnownClaims().
  std::string backend;  // What connects the ranks: "threads", "mpi".
  int world_size = 1;
  std::string type;  // The elements' type.
};

// Receives the name and the value of a property.
using PropertySink =
    std::function<void(const std::string& name, const std::string& value)>;

// Adds a property to the JUnit XML of the running test.
void RecordInXml(const std::string& name, const std::string& value);

// Returns how this program was built, and whether its tests are filtered: the
// value of kConfigurationProperty.
std::string TestConfiguration();

// Records one claim of the running test. Create it before any statement that
// could end or skip the test. Its destructor adds the claim and the test's
// configuration as properties to the test's JUnit XML. The claim holds if the
// test does not fail.
//
// The test fails in these cases: it would pass without a measurement of the
// claim; the claim is not one of KnownClaims(); the test measures an error
// although the claim allows none, or measures none although the claim allows
// one.
//
// Belongs to the thread, and to the process, that runs the test's body.
class ClaimRecorder {
 public:
  // sink: another receiver of the properties, for the recorder's own test.
  explicit ClaimRecorder(const ClaimCellId& place,
                         PropertySink sink = RecordInXml);
  ClaimRecorder(const ClaimRecorder&) = delete;
  ClaimRecorder& operator=(const ClaimRecorder&) = delete;
  ~ClaimRecorder();

  // Adds a case and the ratio of its largest error to the allowed error. The
  // ratio is at most 1 if the claim holds; NaN counts as infinity. Only for a
  // claim that allows an error.
  void Measure(double error_over_allowed);

  // Adds cases in which the test compared bits. Only for a claim that allows no
  // error.
  void AddExact(int64_t cases = 1);

 private:
  // Expects that a known claim is of this kind: exact, or with an error.
  void ExpectKind(bool exact);

  ClaimResult result_;
  bool known_ = false;
  PropertySink sink_;
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RECORDER_H_
