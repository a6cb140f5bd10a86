// Reads the results of tests from the XML files and folders that Bazel keeps.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_TEST_LOGS_H_
#define LOCKSTEP_CONFORMANCE_REPORT_TEST_LOGS_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::conformance {

// The outcome of one test case. Bazel keeps a JUnit XML of each test, in a
// folder per test. GoogleTest writes the XML; Bazel writes it for a test that
// wrote none.
enum class TestOutcome { kPassed, kFailed, kSkipped };

struct TestCaseResult {
  std::string name;  // "Suite.Name".
  TestOutcome outcome = TestOutcome::kPassed;
  std::string message = {};  // The first failure, or the reason for the skip.
  double seconds = 0;
  std::vector<std::pair<std::string, std::string>> properties = {};

  friend bool operator==(const TestCaseResult&,
                         const TestCaseResult&) = default;
};

struct TestXml {
  std::string started;  // As in the file; "" if it is missing there.
  std::vector<TestCaseResult> cases;
};

// Reads one XML file. Errors: kInvalidArgument, one line, if the text is not
// XML, has a document type (which no test writes), or is not a test's.
absl::StatusOr<TestXml> ParseTestXml(absl::string_view text);

// One test target, with all its shards.
struct TestTarget {
  std::string label;  // "//conformance/syncbn:sync_batch_norm_test".
  std::vector<TestCaseResult> cases = {};
  // The problems besides failed cases: one line each.
  std::vector<std::string> problems = {};
  // The start times of the first and the last shard, as in their XML; "" if no
  // file has one.
  std::string first_started = {};
  std::string last_started = {};
};

// Reads the targets below `testlogs`/conformance, and the targets of `labels`
// that left results, sorted by label. If a target has shards of several runs,
// the newest run counts.
//
// These are problems of the target, not errors: a shard is missing, ran past
// its time limit, failed although no case failed, failed before it passed,
// wrote no readable XML, or has no readable status from Bazel.
//
// Errors: kNotFound, one line, if the folder does not exist or contains no
// result; kUnavailable if a part of it cannot be read.
absl::StatusOr<std::vector<TestTarget>> ReadTestLogs(
    const std::string& testlogs, std::span<const std::string> labels = {});

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REPORT_TEST_LOGS_H_
