// Sorts what the tests say by claim, backend, type and world size.
#include "conformance/report/conformance_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "conformance/report/claim_result.h"
#include "conformance/report/expected_rows.h"
#include "conformance/report/known_claims.h"
#include "conformance/report/test_logs.h"
#include "conformance/report/test_xml.h"

namespace lockstep {
namespace {

constexpr size_t kMostMessage = 400;

// The message in one line, shortened.
std::string OneLine(absl::string_view message) {
  std::string line;
  for (const char c : absl::StripAsciiWhitespace(message)) {
    const bool space = absl::ascii_isspace(static_cast<unsigned char>(c));
    if (!space) line.push_back(c);
    if (space && !line.empty() && line.back() != ' ') line.push_back(' ');
  }
  if (line.size() <= kMostMessage) return line;
  line.resize(kMostMessage);
  return line + " ...";
}

// GoogleTest puts the place in the source in front of the reason for a skip.
std::string SkipReason(const std::string& message) {
  const size_t end = message.find('\n');
  const bool has_place = end != std::string::npos &&
                         absl::StrContains(message.substr(0, end), ".cc:");
  const std::string why =
      OneLine(has_place ? message.substr(end + 1) : message);
  return why.empty() ? "no reason is given" : why;
}

// Worse outcomes are larger.
int Badness(TestOutcome outcome) {
  switch (outcome) {
    case TestOutcome::kSkipped:
      return 0;
    case TestOutcome::kPassed:
      return 1;
    case TestOutcome::kFailed:
      break;
  }
  return 2;
}

// What is wrong with a claim of a test that passed; "" for nothing.
std::string WrongWith(const ClaimResult& result) {
  if (result.cases == 0) {
    return absl::StrCat("it passed, but measured nothing of the claim ",
                        result.claim);
  }
  if (result.error_over_allowed <= (result.exact ? 0 : 1)) return "";
  return absl::StrFormat(
      "it passed, but measured %.3g times what the claim %s allows",
      result.error_over_allowed, result.claim);
}

using Cells = std::map<int, ClaimCell>;  // By world size.
// By claim, backend and type.
using Table =
    std::map<std::tuple<std::string, std::string, std::string>, Cells>;

class ReportMaker {
 public:
  void AddTarget(const TestTarget& target) {
    TargetSummary& summary = report_.targets.emplace_back();
    summary.label = target.label;
    summary.started = target.first_started;
    for (const std::string& problem : target.problems) {
      AddFailure(target.label, "", problem);
      failed_unrecorded_.insert(target.label);
    }
    for (const TestCaseResult& test : target.cases) {
      AddTest(target.label, test);
    }
    AddStarted(target);
  }

  ConformanceReport Finish(const std::vector<KnownClaim>& known,
                           const std::vector<ExpectedRow>& expected) {
    for (const ExpectedRow& row : expected) askers_[row.claim].insert(row.test);
    for (const KnownClaim& claim : known) {
      report_.claims.push_back(
          {claim.name, claim.says, claim.allowed, claim.test, {}, {}, {}});
      askers_[claim.name].insert(claim.test);
    }
    for (auto& [key, cells] : table_) {
      const auto& [name, backend, type] = key;
      for (const auto& [world_size, cell] : cells) {
        world_sizes_.insert(world_size);
      }
      AddRow(ClaimOf(name), backend, type, std::move(cells));
    }
    report_.world_sizes.assign(world_sizes_.begin(), world_sizes_.end());
    AddFailedTests();
    AddMissing(expected);
    for (auto& [key, tests] : skips_) {
      report_.skips.push_back({key.first, key.second, tests});
    }
    return std::move(report_);
  }

 private:
  void AddFailure(const std::string& target, const std::string& test,
                  const std::string& what) {
    report_.failures.push_back({target, test, what});
    ++report_.targets.back().failed;
  }

  void AddTest(const std::string& target, const TestCaseResult& test) {
    TargetSummary& summary = report_.targets.back();
    summary.seconds += test.seconds;
    TestOutcome outcome = test.outcome;
    std::string what = OneLine(test.message);
    bool recorded = false;
    for (const auto& [name, value] : test.properties) {
      if (!absl::StartsWith(name, kClaimProperty) || value.empty()) continue;
      const absl::StatusOr<ClaimResult> result = ParseClaimResult(value);
      recorded = recorded || result.ok();
      const std::string wrong =
          result.ok() ? AddClaim(target, *result, test.outcome)
                      : absl::StrCat("it recorded ",
                                     std::string(result.status().message()));
      if (wrong.empty() || outcome == TestOutcome::kFailed) continue;
      outcome = TestOutcome::kFailed;
      what = wrong;
    }
    if (outcome == TestOutcome::kFailed) {
      AddFailure(target, test.name, what);
      if (!recorded) failed_unrecorded_.insert(target);
    }
    if (outcome == TestOutcome::kPassed) ++summary.passed;
    if (outcome == TestOutcome::kSkipped) {
      ++summary.skipped;
      ++skips_[{target, SkipReason(test.message)}];
    }
  }

  // Returns what is wrong with a claim of a test that did not fail.
  std::string AddClaim(const std::string& target, const ClaimResult& result,
                       TestOutcome outcome) {
    askers_[result.claim].insert(target);
    const std::string wrong =
        outcome == TestOutcome::kPassed ? WrongWith(result) : "";
    if (!wrong.empty()) outcome = TestOutcome::kFailed;
    Cells& cells = table_[{result.claim, result.backend, result.type}];
    ClaimCell& cell = cells[result.world_size];
    if (outcome == TestOutcome::kSkipped) return wrong;
    if (Badness(outcome) > Badness(cell.outcome)) cell.outcome = outcome;
    cell.error_over_allowed =
        std::max(cell.error_over_allowed, result.error_over_allowed);
    cell.exact = cell.exact && result.exact;
    cell.cases += result.cases;
    return wrong;
  }

  void AddFailedTests() {
    for (ClaimReport& claim : report_.claims) {
      for (const std::string& target : askers_[claim.name]) {
        if (failed_unrecorded_.contains(target)) {
          claim.failed_tests.push_back(target);
        }
      }
    }
  }

  void AddMissing(const std::vector<ExpectedRow>& expected) {
    for (const ExpectedRow& one : expected) {
      ClaimReport& claim = ClaimOf(one.claim);
      const bool recorded = std::any_of(
          claim.rows.begin(), claim.rows.end(),
          [&](const ClaimRow& row) { return row.backend == one.backend; });
      if (!recorded) claim.missing.push_back(one);
    }
  }

  void AddStarted(const TestTarget& target) {
    std::string& first = report_.first_started;
    if (!target.first_started.empty() &&
        (first.empty() || target.first_started < first)) {
      first = target.first_started;
    }
    report_.last_started = std::max(report_.last_started, target.last_started);
  }

  ClaimReport& ClaimOf(const std::string& name) {
    auto& claims = report_.claims;
    const auto found = std::find_if(
        claims.begin(), claims.end(),
        [&](const ClaimReport& claim) { return claim.name == name; });
    return found != claims.end()
               ? *found
               : claims.emplace_back(ClaimReport{name, "", "", "", {}, {}, {}});
  }

  static bool SayTheSame(const Cells& a, const Cells& b) {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(),
                      [](const auto& x, const auto& y) {
                        return x.first == y.first &&
                               x.second.outcome == y.second.outcome &&
                               x.second.exact == y.second.exact &&
                               x.second.error_over_allowed ==
                                   y.second.error_over_allowed;
                      });
  }

  // In the row of another type, where it says the same.
  static void AddRow(ClaimReport& claim, const std::string& backend,
                     const std::string& type, Cells cells) {
    for (ClaimRow& row : claim.rows) {
      if (row.backend != backend || !SayTheSame(row.cells, cells)) continue;
      row.types.push_back(type);
      for (auto& [world_size, cell] : row.cells) {
        cell.cases += cells[world_size].cases;
      }
      return;
    }
    claim.rows.push_back({backend, {type}, std::move(cells)});
  }

  ConformanceReport report_;
  Table table_;
  std::map<std::string, std::set<std::string>> askers_;  // Tests, by claim.
  // Tests in which something failed that recorded no claim.
  std::set<std::string> failed_unrecorded_;
  std::set<int> world_sizes_;
  std::map<std::pair<std::string, std::string>, int64_t> skips_;
};

}  // namespace

ConformanceReport MakeReport(std::span<const TestTarget> targets,
                             const std::vector<KnownClaim>& known,
                             const std::vector<ExpectedRow>& expected) {
  ReportMaker maker;
  for (const TestTarget& target : targets) maker.AddTarget(target);
  return maker.Finish(known, expected);
}

TestOutcome OutcomeOf(const ClaimReport& claim) {
  if (!claim.failed_tests.empty()) return TestOutcome::kFailed;
  TestOutcome worst = TestOutcome::kSkipped;
  for (const ClaimRow& row : claim.rows) {
    for (const auto& [world_size, cell] : row.cells) {
      if (Badness(cell.outcome) > Badness(worst)) worst = cell.outcome;
    }
  }
  return worst;
}

ReportTotals TotalsOf(const ConformanceReport& report) {
  ReportTotals totals;
  for (const ClaimReport& claim : report.claims) {
    const TestOutcome outcome = OutcomeOf(claim);
    totals.claims_hold += outcome == TestOutcome::kPassed;
    totals.claims_failed += outcome == TestOutcome::kFailed;
    totals.claims_not_run += outcome == TestOutcome::kSkipped;
  }
  for (const TargetSummary& target : report.targets) {
    totals.tests_passed += target.passed;
    totals.tests_failed += target.failed;
    totals.tests_skipped += target.skipped;
  }
  return totals;
}

std::string CellText(const ClaimCell& cell) {
  switch (cell.outcome) {
    case TestOutcome::kSkipped:
      return "skip";
    case TestOutcome::kFailed:
      return cell.error_over_allowed > 1 &&
                     std::isfinite(cell.error_over_allowed)
                 ? absl::StrFormat("FAIL %.3g", cell.error_over_allowed)
                 : "FAIL";
    case TestOutcome::kPassed:
      break;
  }
  return cell.exact ? "exact"
                    : absl::StrFormat("%.2g", cell.error_over_allowed);
}

}  // namespace lockstep
