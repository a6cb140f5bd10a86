#include "tools/gpu_bundle/stages.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/subprocess.h"
#include "conformance/report/test_logs.h"
#include "report/document.h"
#include "tools/gpu_bundle/host.h"

namespace lockstep::gpu_bundle {
namespace {

// The time to end one stage, write its results, and start the next.
constexpr absl::Duration kBetweenStages = absl::Seconds(1);

// The table.

absl::StatusOr<Stage> ParseStage(absl::string_view line) {
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() < 5) {
    return absl::InvalidArgumentError(
        "not NAME SUITES SECONDS NEEDS COMMAND...");
  }
  Stage stage = {.name = words[0],
                 .suites = absl::StrSplit(words[1], ','),
                 .least = {},
                 .most = {},
                 .needs = {},
                 .command = {words.begin() + 4, words.end()}};
  const std::pair<std::string, std::string> seconds =
      absl::StrSplit(words[2], absl::MaxSplits('-', 1));
  int least = 0;
  int most = 0;
  if (!absl::SimpleAtoi(seconds.first, &least) ||
      !absl::SimpleAtoi(seconds.second, &most) || least < 1 || most < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", words[2], "' is not LEAST-MOST"));
  }
  stage.least = absl::Seconds(least);
  stage.most = absl::Seconds(most);
  if (words[3] != "-") stage.needs = absl::StrSplit(words[3], ',');
  return stage;
}

// The command.

void ExpandCommand(const Stage& stage, const Setting& setting,
                   absl::Duration limit, std::vector<std::string>& command) {
  const int64_t seconds =
      std::max<int64_t>(absl::ToInt64Seconds(limit) * 2 / 3, 1);
  for (std::string& word : command) {
    if (absl::StartsWith(word, "bin/")) {
      word = absl::StrCat(setting.bundle, "/", word);
    }
    word = absl::StrReplaceAll(
        word, {{"{gpus}", absl::StrCat(setting.gpus)},
               {"{ranks}", absl::StrCat(std::max(setting.gpus, 2))},
               {"{seconds}", absl::StrCat(seconds)},
               {"{json}", absl::StrCat(setting.out, "/", stage.name, ".json")},
               {"{out}", absl::StrCat(setting.out, "/", stage.name)},
               {"{bundle}", setting.bundle}});
  }
  if (command[0] == "compute-sanitizer") {
    command[0] = setting.compute_sanitizer;
  }
}

// Adds the variables that say which GPUs the stage has, as
// tools/cuda/with_gpu.sh does for a test.
void AddGpuVariables(const Stage& stage, const Setting& setting,
                     Environment& environment) {
  const bool all = absl::StrContains(absl::StrJoin(stage.needs, ","), "gpus>=");
  environment.emplace_back("LOCKSTEP_GPUS", all ? "all" : "1");
  environment.emplace_back("LOCKSTEP_REQUIRE_GPU",
                           absl::StrCat(all ? setting.gpus : 1));
  if (all || setting.gpus == 1) return;
  const std::string visible = Variable("CUDA_VISIBLE_DEVICES");
  environment.emplace_back(
      "CUDA_VISIBLE_DEVICES",
      visible.empty() ? "0" : visible.substr(0, visible.find(',')));
}

// Reads the results of the stage's tests if their file is complete. A test that
// was killed may have left half a file.
void ReadTests(const std::string& file, StageResult& result) {
  const absl::StatusOr<std::string> text = ReadFile(file);
  if (!text.ok()) return;
  const auto xml = conformance::ParseTestXml(*text);
  const size_t begin = text->find("<testsuite ");
  const size_t end = text->rfind("</testsuites>");
  if (!xml.ok() || begin == text->npos || end == text->npos) return;
  for (const conformance::TestCaseResult& test : xml->cases) {
    ++result.tests;
    if (test.outcome == conformance::TestOutcome::kSkipped) ++result.skipped;
    if (test.outcome == conformance::TestOutcome::kFailed) {
      result.failed.push_back(test.name);
    }
  }
  const std::string stage = absl::StrCat("\"", result.name, ".");
  result.junit = absl::StrReplaceAll(
      text->substr(begin, end - begin),
      {{"<testsuite name=\"", absl::StrCat("<testsuite name=", stage)},
       {" classname=\"", absl::StrCat(" classname=", stage)}});
}

report::Value ValueOf(const nlohmann::ordered_json& json) {
  if (json.is_object()) {
    report::Value::Object members;
    for (const auto& [key, value] : json.items()) {
      members.emplace_back(key, ValueOf(value));
    }
    return members;
  }
  if (json.is_array()) {
    report::Value::Array values;
    for (const auto& value : json) values.push_back(ValueOf(value));
    return values;
  }
  if (json.is_string()) return json.get<std::string>();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned()) return json.get<uint64_t>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  return {};
}

// Returns the last line of the log that is not empty.
std::string LastLine(const std::string& file) {
  const absl::StatusOr<std::string> text = ReadFile(file);
  if (!text.ok()) return "";
  const size_t most = 4000;
  const std::string tail =
      text->substr(text->size() - std::min(text->size(), most));
  const std::vector<absl::string_view> lines =
      absl::StrSplit(tail, '\n', absl::SkipWhitespace());
  return lines.empty() ? "" : report::OneLine(lines.back(), 100);
}

void SetOutcome(int exit_status, absl::Duration limit, const std::string& log,
                StageResult& result) {
  if (exit_status == Subprocess::kStillRunning) {
    result.outcome = Outcome::kTimedOut;
    // GoogleTest prints a case's name when it begins, and writes its XML at the
    // end.
    result.why = absl::StrCat("after ", absl::ToInt64Seconds(limit), " s, at ",
                              LastLine(log));
  } else if (exit_status != 0 || !result.failed.empty()) {
    result.outcome = Outcome::kFailed;
    result.why =
        result.failed.empty()
            ? absl::StrCat(DescribeEnd(exit_status), ": ", LastLine(log))
            : absl::StrCat(
                  report::Counted(static_cast<int64_t>(result.failed.size()),
                                  "test"),
                  ", ", result.failed[0], " first");
  } else if (result.tests > 0 && result.tests == result.skipped) {
    result.outcome = Outcome::kSkipped;
  }
}

std::string XmlText(absl::string_view text) {
  return absl::StrReplaceAll(
      report::OneLine(text),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

bool DidNotRun(Outcome outcome) {
  return outcome == Outcome::kNoBudget || outcome == Outcome::kNeedsMissing;
}

// Returns the JUnit case of a stage that is not a GoogleTest or did not finish.
std::string StageCase(const StageResult& result) {
  const std::string why = XmlText(Text(result));
  const bool skipped = DidNotRun(result.outcome);
  const bool passed = result.outcome == Outcome::kPassed;
  return absl::StrCat(
      "<testsuite name=\"", result.name, "\" tests=\"1\" failures=\"",
      passed || skipped ? 0 : 1, "\" skipped=\"", skipped ? 1 : 0, "\" time=\"",
      result.seconds, "\">\n    <testcase name=\"stage\"", " classname=\"",
      result.name, "\" time=\"", result.seconds, "\">",
      passed    ? ""
      : skipped ? absl::StrCat("<skipped message=\"", why, "\"/>")
                : absl::StrCat("<failure message=\"", why, "\"/>"),
      "</testcase>\n  </testsuite>\n");
}

}  // namespace

bool Stage::IsIn(absl::string_view suite) const {
  return suite == "all" ||
         std::any_of(suites.begin(), suites.end(), [&](const auto& each) {
           return each == suite || each == "every";
         });
}

absl::StatusOr<std::vector<Stage>> ParseStages(absl::string_view text) {
  std::vector<Stage> stages;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    absl::StatusOr<Stage> stage = ParseStage(line);
    if (!stage.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stages.txt: line ", number, ": ", stage.status().message()));
    }
    stages.push_back(*std::move(stage));
  }
  return stages;
}

std::string MissingNeed(const Stage& stage, const Setting& setting) {
  for (const std::string& need : stage.needs) {
    absl::string_view count = need;
    int gpus = 0;
    if (absl::ConsumePrefix(&count, "gpus>=") &&
        absl::SimpleAtoi(count, &gpus)) {
      if (setting.gpus < gpus) return absl::StrCat(gpus, " GPUs");
    } else if (need == "shared") {
      if (setting.exclusive) return "a GPU that several processes may use";
    } else if (need == "torch") {
      if (setting.python.empty()) return "PyTorch";
    } else if (need == "data") {
      if (!setting.has_data) return "Fashion-MNIST in the bundle";
    } else if (need == "compute-sanitizer") {
      if (setting.compute_sanitizer.empty()) return need;
    } else if (FindProgram(need).empty()) {
      return need;
    }
  }
  return "";
}

const char* Name(Outcome outcome) {
  constexpr const char* kNames[] = {"passed",  "failed",    "timed_out",
                                    "skipped", "no_budget", "lacks"};
  return kNames[static_cast<size_t>(outcome)];
}

std::string Text(const StageResult& result) {
  constexpr const char* kNames[] = {"passed",          "FAILED",
                                    "TIMED OUT",       "every test was skipped",
                                    "not run: budget", "not run: needs "};
  std::string text = kNames[static_cast<size_t>(result.outcome)];
  if (result.outcome == Outcome::kNeedsMissing) return text + result.why;
  if (!result.why.empty()) absl::StrAppend(&text, ": ", result.why);
  if (result.outcome == Outcome::kPassed && result.skipped > 0) {
    absl::StrAppend(&text, ", ", result.skipped, " skipped");
  }
  return text;
}

absl::Duration LeastTime(std::span<const Stage> stages,
                         const Setting& setting) {
  absl::Duration least;
  for (const Stage& stage : stages) {
    if (!MissingNeed(stage, setting).empty()) continue;
    least += stage.least + kBetweenStages;
  }
  return least;
}

StageResult RunStage(const Stage& stage, const Setting& setting,
                     absl::Duration left, absl::Duration reserved) {
  StageResult result = {.name = stage.name, .command = stage.command};
  const absl::Duration limit = std::min(
      stage.most, std::max(std::min(stage.least, left), left - reserved));
  ExpandCommand(stage, setting, limit, result.command);
  result.why = MissingNeed(stage, setting);
  if (!result.why.empty()) {
    result.outcome = Outcome::kNeedsMissing;
    return result;
  }
  if (left < stage.least) {
    result.outcome = Outcome::kNoBudget;
    return result;
  }
  const std::string path = absl::StrCat(setting.out, "/", stage.name);
  for (const char* suffix : {".log", ".json", ".xml"}) {
    std::error_code ignored;  // From an earlier run.
    std::filesystem::remove(path + suffix, ignored);
  }
  // The shell redirects the output, so the log can be read while the stage
  // runs.
  std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$@\" >\"$0\" 2>&1",
                                   path + ".log"};
  argv.insert(argv.end(), result.command.begin(), result.command.end());
  Environment environment = setting.environment;
  environment.emplace_back("GTEST_OUTPUT", absl::StrCat("xml:", path, ".xml"));
  AddGpuVariables(stage, setting, environment);
  const absl::StatusOr<TemporaryFolder> own =
      TemporaryFolder::Create("lockstep-stage");
  if (own.ok()) environment.emplace_back("TEST_TMPDIR", own->path());
  const auto start = std::chrono::steady_clock::now();
  const SubprocessResult ended =
      RunSubprocess(argv, limit, {.environment = environment});
  result.seconds = absl::ToDoubleSeconds(
      absl::FromChrono(std::chrono::steady_clock::now() - start));
  ReadTests(path + ".xml", result);
  result.numbers = ReadJson(path + ".json");
  SetOutcome(ended.exit_status, limit, path + ".log", result);
  return result;
}

report::Value ReadJson(const std::string& file) {
  const absl::StatusOr<std::string> text = ReadFile(file);
  if (!text.ok()) return {};
  const auto json = nlohmann::ordered_json::parse(*text, nullptr, false);
  return json.is_discarded() ? report::Value("not JSON") : ValueOf(json);
}

std::string JUnitText(std::span<const StageResult> results) {
  int tests = 0;
  int skipped = 0;
  size_t failures = 0;
  std::string suites;
  for (const StageResult& result : results) {
    tests += result.tests;
    skipped += result.skipped;
    failures += result.failed.size();
    absl::StrAppend(&suites, "  ", result.junit);
    // A stage whose end contradicts its tests, such as by a sanitizer's report,
    // also gets a case of its own.
    const bool told = result.outcome == Outcome::kPassed ||
                      result.outcome == Outcome::kSkipped ||
                      !result.failed.empty();
    if (result.tests > 0 && told) continue;
    ++tests;
    if (DidNotRun(result.outcome)) {
      ++skipped;
    } else if (result.outcome != Outcome::kPassed) {
      ++failures;
    }
    absl::StrAppend(&suites, "  ", StageCase(result));
  }
  return absl::StrCat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n",
                      "<testsuites name=\"gpu_bundle\" tests=\"", tests,
                      "\" failures=\"", failures, "\" skipped=\"", skipped,
                      "\">\n", suites, "</testsuites>\n");
}

}  // namespace lockstep::gpu_bundle
