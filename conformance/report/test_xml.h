// One JUnit XML file, as GoogleTest writes it, or Bazel for a test that wrote
// none.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_TEST_XML_H_
#define LOCKSTEP_CONFORMANCE_REPORT_TEST_XML_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

enum class TestOutcome { kPassed, kFailed, kSkipped };

struct TestCaseResult {
  std::string name;  // "Suite.Name".
  TestOutcome outcome = TestOutcome::kPassed;
  std::string message;  // Of its first failure, or why it was skipped.
  double seconds = 0;
  std::vector<std::pair<std::string, std::string>> properties;
};

struct TestXml {
  std::string started;  // As the file has it; "" if it does not.
  std::vector<TestCaseResult> cases;
};

// Errors: kInvalidArgument, one line: where the text is no XML; has a document
// type, which no test writes; or is no test's.
absl::StatusOr<TestXml> ParseTestXml(absl::string_view text);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_TEST_XML_H_
