// What Bazel keeps of tests: the JUnit XML of each, as GoogleTest writes it or
// Bazel for a test that wrote none, in a folder for each.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_TEST_LOGS_H_
#define LOCKSTEP_CONFORMANCE_REPORT_TEST_LOGS_H_

#include <span>
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
  std::string message = {};  // Of its first failure, or why it was skipped.
  double seconds = 0;
  std::vector<std::pair<std::string, std::string>> properties = {};
};

struct TestXml {
  std::string started;  // As the file has it; "" if it does not.
  std::vector<TestCaseResult> cases;
};

// Reads one XML file. Errors: kInvalidArgument, one line, where the text is no
// XML, has a document type, which no test writes, or is no test's.
absl::StatusOr<TestXml> ParseTestXml(absl::string_view text);

// One test target, of all its shards.
struct TestTarget {
  std::string label;  // "//conformance/syncbn:sync_batch_norm_test".
  std::vector<TestCaseResult> cases = {};
  // What is wrong beside the cases that failed: one line each.
  std::vector<std::string> problems = {};
  // When the first and the last shard began, as their XML has it; "" if none
  // says.
  std::string first_started = {};
  std::string last_started = {};
};

// Reads the targets below `testlogs`/`part`, and those of `labels` that left
// results, sorted by label. If a target has shards of several runs, the newest
// run counts. It is no error but a problem of the target if a shard is missing,
// ran past its time limit, failed although no case did, wrote no readable XML,
// or has no readable status of Bazel's. Errors: kNotFound, one line, if there
// is no such folder or no result in it; kUnavailable if a part of it cannot be
// read.
absl::StatusOr<std::vector<TestTarget>> ReadTestLogs(
    const std::string& testlogs, const std::string& part,
    std::span<const std::string> labels = {});

// What Bazel says of a test, in the file test.cache_status beside its XML: a
// protocol buffer, TestResultData of Bazel's test_status.proto, of which this
// reads the third field.
enum class BazelStatus { kUnknown, kPassed, kFlaky, kTimeout, kFailed };
BazelStatus ParseBazelStatus(absl::string_view bytes);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_TEST_LOGS_H_
