#include "conformance/report/conformance_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "conformance/report/claims.h"
#include "conformance/report/test_logs.h"
#include "report/document.h"

namespace lockstep::conformance {
namespace {

// Returns the reason for a skip. GoogleTest puts the source position before it.
std::string SkipReason(const std::string& message) {
  const size_t end = message.find('\n');
  const bool has_place = end != std::string::npos &&
                         absl::StrContains(message.substr(0, end), ".cc:");
  const std::string why =
      report::OneLine(has_place ? message.substr(end + 1) : message);
  return why.empty() ? "no reason is given" : why;
}

// Returns what is wrong with a claim of a test that passed; "" for nothing.
// exact: whether the claim allows no error.
std::string ProblemWith(const ClaimResult& result, bool exact) {
  if (result.cases == 0) {
    return absl::StrCat("it passed, but measured nothing of the claim ",
                        result.claim);
  }
  if (exact != result.exact) {
    return absl::StrCat("it passed, but measured ", exact ? "an" : "no",
                        " error of the claim ", result.claim, ", which allows ",
                        exact ? "none" : "one");
  }
  if (result.error_over_allowed <= (result.exact ? 0 : 1)) return "";
  return absl::StrFormat(
      "it passed, but measured %.3g times what the claim %s allows",
      result.error_over_allowed, result.claim);
}

using Cells = std::map<int, ClaimCell>;  // By world size.
// Keyed by claim, backend and type.
using Table =
    std::map<std::tuple<std::string, std::string, std::string>, Cells>;

// One cell of one test: claim, backend, type, world size, label.
using CellOfTest =
    std::tuple<std::string, std::string, std::string, int, std::string>;

class ReportMaker {
 public:
  explicit ReportMaker(const std::vector<KnownClaim>& known) : known_(known) {
    for (const KnownClaim& claim : known) {
      ClaimReport& made = report_.claims.emplace_back();
      made.name = claim.name;
      made.says = claim.says;
      made.allowed = claim.allowed;
      if (!claim.rows.empty()) made.test = claim.rows.front().test;
      for (const ExpectedRow& row : claim.rows) {
        tests_by_claim_[claim.name].insert(row.test);
        if (!row.gpu_asks.empty()) gpu_tests_.insert({claim.name, row.test});
        for (CellOfTest& cell : CellsOf(claim, row)) {
          expected_cells_.insert(std::move(cell));
        }
      }
    }
  }

  void AddTarget(const TestTarget& target) {
    TargetSummary& summary = report_.targets.emplace_back();
    summary.label = target.label;
    summary.started = target.first_started;
    for (const std::string& problem : target.problems) {
      AddFailure(target.label, "", report::OneLine(problem));
      failed_unrecorded_.insert(SliceLabel(target.label));
    }
    for (const TestCaseResult& test : target.cases) {
      AddTest(target.label, test);
    }
    AddStarted(target);
  }

  ConformanceReport Finish() {
    for (const KnownClaim& claim : known_) {
      for (const ExpectedRow& row : claim.rows) {
        row.gpu_asks.empty() ? AddMissing(claim, row) : AddGpuRow(claim, row);
      }
    }
    std::set<int> world_sizes;
    for (const auto& [key, cells] : table_) {
      const auto& [name, backend, type] = key;
      for (const auto& [world_size, cell] : cells) {
        world_sizes.insert(world_size);
      }
      AddRow(ClaimOf(name), backend, type, cells);
    }
    report_.world_sizes.assign(world_sizes.begin(), world_sizes.end());
    for (ClaimReport& claim : report_.claims) {
      std::ranges::set_intersection(tests_by_claim_[claim.name],
                                    failed_unrecorded_,
                                    std::back_inserter(claim.failed_tests));
    }
    for (auto& [key, tests] : skips_) {
      report_.skips.push_back({key.first, key.second, tests});
    }
    return std::move(report_);
  }

 private:
  // Returns the test whose rows a target records. A target with the whole grid
  // counts as the one with its slice.
  static std::string SliceLabel(const std::string& label) {
    return std::string(absl::StripSuffix(label, "_exhaustive"));
  }

  static std::vector<CellOfTest> CellsOf(const KnownClaim& claim,
                                         const ExpectedRow& row) {
    std::vector<CellOfTest> cells;
    for (const std::string& type : row.types) {
      for (const int world_size : row.world_sizes) {
        cells.push_back({claim.name, row.backend, type, world_size, row.test});
      }
    }
    return cells;
  }

  void AddFailure(const std::string& target, const std::string& test,
                  const std::string& what) {
    report_.failures.push_back({target, test, what});
    ++report_.targets.back().failed;
  }

  void AddTest(const std::string& target, const TestCaseResult& test) {
    TargetSummary& summary = report_.targets.back();
    summary.seconds += test.seconds;
    const std::string wrong = AddClaims(SliceLabel(target), test);
    TestOutcome outcome = test.outcome;
    std::string what = report::OneLine(test.message);
    if (!wrong.empty() && outcome != TestOutcome::kFailed) {
      outcome = TestOutcome::kFailed;
      what = wrong;
    }
    if (outcome == TestOutcome::kFailed) AddFailure(target, test.name, what);
    if (outcome == TestOutcome::kPassed) ++summary.passed;
    if (outcome == TestOutcome::kSkipped) {
      ++summary.skipped;
      ++skips_[{target, SkipReason(test.message)}];
    }
  }

  // Adds a test's claims. Returns what is wrong with the first wrong claim.
  std::string AddClaims(const std::string& target, const TestCaseResult& test) {
    std::string configuration;  // "" if the test recorded none.
    for (const auto& [name, value] : test.properties) {
      if (name == kConfigurationProperty) configuration = value;
    }
    const bool filtered = absl::EndsWith(configuration, kFiltered);
    std::string first_wrong;
    bool recorded = false;
    for (const auto& [name, value] : test.properties) {
      if (!absl::StartsWith(name, kClaimProperty)) continue;
      const absl::StatusOr<ClaimResult> result = ParseClaimResult(value);
      const std::string wrong =
          result.ok() ? AddClaim(target, *result, test.outcome, filtered)
                      : absl::StrCat("it recorded ", result.status().message());
      recorded = recorded || result.ok();
      if (first_wrong.empty()) first_wrong = report::OneLine(wrong);
    }
    if (recorded) {
      report_.targets.back().configurations.insert(
          configuration.empty() ? "unknown" : report::OneLine(configuration));
    } else if (test.outcome == TestOutcome::kFailed || !first_wrong.empty()) {
      failed_unrecorded_.insert(target);
    }
    return first_wrong;
  }

  // Adds a claim. Returns what is wrong with it, apart from a failure of its
  // test.
  std::string AddClaim(const std::string& target, const ClaimResult& result,
                       TestOutcome outcome, bool filtered) {
    tests_by_claim_[result.claim].insert(target);
    CellOfTest key = {result.claim, result.backend, result.type,
                      result.world_size, target};
    std::string wrong;
    if (!expected_cells_.contains(key) &&
        !gpu_tests_.contains({result.claim, target})) {
      wrong = absl::StrCat("it recorded the claim ", result.claim, " on ",
                           result.backend, " in ", result.type, " at ",
                           result.world_size,
                           " ranks, which claims.cc does not have");
    } else if (outcome == TestOutcome::kPassed) {
      wrong = ProblemWith(
          result,
          std::ranges::find(known_, result.claim, &KnownClaim::name)->exact());
    }
    recorded_.insert(std::move(key));
    ClaimCell& cell =
        table_[{result.claim, result.backend, result.type}][result.world_size];
    if (!wrong.empty()) outcome = TestOutcome::kFailed;
    cell.passed += outcome == TestOutcome::kPassed;
    cell.failed += outcome == TestOutcome::kFailed;
    cell.skipped += outcome == TestOutcome::kSkipped;
    cell.not_run += filtered;
    if (outcome == TestOutcome::kSkipped) return wrong;
    cell.error_over_allowed =
        std::max(cell.error_over_allowed, result.error_over_allowed);
    cell.exact = cell.exact && result.exact;
    cell.cases += result.cases;
    return wrong;
  }

  // Adds the cells of the row that its test did not record.
  void AddMissing(const KnownClaim& known, const ExpectedRow& row) {
    const std::vector<CellOfTest> cells = CellsOf(known, row);
    MissingCells missing = {row.backend, row.test, 0,
                            static_cast<int64_t>(cells.size())};
    for (const CellOfTest& cell : cells) {
      if (recorded_.contains(cell)) continue;
      const auto& [claim, backend, type, world_size, test] = cell;
      ++table_[{claim, backend, type}][world_size].not_run;
      ++missing.cells;
    }
    if (missing.cells > 0) ClaimOf(known.name).missing.push_back(missing);
  }

  void AddGpuRow(const KnownClaim& known, const ExpectedRow& row) {
    GpuRow made = {row.backend, row.test, row.gpu_asks, ClaimState::kSkipped,
                   "needs a GPU (--config=cuda runs it)"};
    for (const TargetSummary& target : report_.targets) {
      if (target.label != row.test) continue;
      made.state =
          StateOf(ClaimCell{target.passed, target.failed, target.skipped});
      made.why = "";
      for (const auto& [key, tests] : skips_) {
        if (key.first == row.test && made.why.empty()) made.why = key.second;
      }
    }
    ClaimOf(known.name).gpu_rows.push_back(std::move(made));
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
    const auto found =
        std::ranges::find(report_.claims, name, &ClaimReport::name);
    if (found != report_.claims.end()) return *found;
    ClaimReport& made = report_.claims.emplace_back();
    made.name = name;
    return made;
  }

  static bool HaveSameResults(const Cells& a, const Cells& b) {
    return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
      return x.first == y.first && StateOf(x.second) == StateOf(y.second) &&
             x.second.exact == y.second.exact &&
             x.second.error_over_allowed == y.second.error_over_allowed;
    });
  }

  // Adds cells, to the row of another type if that row has the same results.
  static void AddRow(ClaimReport& claim, const std::string& backend,
                     const std::string& type, const Cells& cells) {
    for (ClaimRow& row : claim.rows) {
      if (row.backend != backend || !HaveSameResults(row.cells, cells))
        continue;
      row.types.push_back(type);
      for (auto& [world_size, cell] : row.cells) {
        const ClaimCell& other = cells.at(world_size);
        cell.passed += other.passed;
        cell.failed += other.failed;
        cell.skipped += other.skipped;
        cell.not_run += other.not_run;
        cell.cases += other.cases;
      }
      return;
    }
    claim.rows.push_back({backend, {type}, cells});
  }

  const std::vector<KnownClaim>& known_;
  ConformanceReport report_;
  Table table_;
  std::set<CellOfTest> expected_cells_;
  // Pairs of a claim and a test that may record any cell of the claim.
  std::set<std::pair<std::string, std::string>> gpu_tests_;
  std::set<CellOfTest> recorded_;
  std::map<std::string, std::set<std::string>>
      tests_by_claim_;  // Tests, by claim.
  // Tests with a failure in a case that recorded no claim.
  std::set<std::string> failed_unrecorded_;
  std::map<std::pair<std::string, std::string>, int64_t> skips_;
};

}  // namespace

ConformanceReport MakeReport(std::span<const TestTarget> targets,
                             const std::vector<KnownClaim>& known) {
  ReportMaker maker(known);
  for (const TestTarget& target : targets) maker.AddTarget(target);
  return maker.Finish();
}

ClaimState StateOf(const ClaimCell& cell) {
  if (cell.failed > 0) return ClaimState::kFailed;
  const bool whole = cell.skipped == 0 && cell.not_run == 0;
  if (cell.passed > 0) return whole ? ClaimState::kHolds : ClaimState::kInPart;
  return cell.skipped > 0 ? ClaimState::kSkipped : ClaimState::kNotRun;
}

ClaimState StateOf(const ClaimReport& claim) {
  bool failed = !claim.failed_tests.empty(), any = false, whole = true;
  for (const ClaimRow& row : claim.rows) {
    for (const auto& [world_size, cell] : row.cells) {
      const ClaimState state = StateOf(cell);
      failed = failed || state == ClaimState::kFailed;
      any = any || state == ClaimState::kHolds || state == ClaimState::kInPart;
      whole = whole && state == ClaimState::kHolds;
    }
  }
  for (const GpuRow& row : claim.gpu_rows) {
    failed = failed || row.state == ClaimState::kFailed;
    whole = whole && row.state != ClaimState::kNotRun;
  }
  if (failed) return ClaimState::kFailed;
  if (!any) return ClaimState::kNotRun;
  return whole ? ClaimState::kHolds : ClaimState::kInPart;
}

ReportTotals TotalsOf(const ConformanceReport& report) {
  ReportTotals totals;
  for (const ClaimReport& claim : report.claims) {
    const ClaimState state = StateOf(claim);
    totals.claims_hold += state == ClaimState::kHolds;
    totals.claims_in_part += state == ClaimState::kInPart;
    totals.claims_not_run += state == ClaimState::kNotRun;
    totals.claims_failed += state == ClaimState::kFailed;
    totals.gpu_rows_skipped += std::ranges::count(
        claim.gpu_rows, ClaimState::kSkipped, &GpuRow::state);
  }
  for (const TargetSummary& target : report.targets) {
    totals.tests_passed += target.passed;
    totals.tests_failed += target.failed;
    totals.tests_skipped += target.skipped;
    totals.targets_older += target.older;
    for (const std::string& configuration : target.configurations) {
      ++totals.configurations[configuration];
    }
  }
  return totals;
}

void MarkOlder(absl::Time committed, ConformanceReport& report) {
  report.committed =
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", committed, absl::UTCTimeZone());
  for (TargetSummary& target : report.targets) {
    absl::Time started;
    std::string error;
    // GoogleTest writes local time; Bazel sets it to UTC for its tests.
    target.older = absl::ParseTime("%Y-%m-%dT%H:%M:%E*S", target.started,
                                   absl::UTCTimeZone(), &started, &error) &&
                   started < committed;
  }
}

std::string CellText(const ClaimCell& cell) {
  const ClaimState state = StateOf(cell);
  switch (state) {
    case ClaimState::kSkipped:
      return "skip";
    case ClaimState::kNotRun:
      return "not run";
    case ClaimState::kFailed:
      return cell.error_over_allowed > 1 &&
                     std::isfinite(cell.error_over_allowed)
                 ? absl::StrFormat("FAIL %.3g", cell.error_over_allowed)
                 : "FAIL";
    case ClaimState::kInPart:
    case ClaimState::kHolds:
      break;
  }
  return absl::StrCat(
      cell.exact ? "exact" : absl::StrFormat("%.2g", cell.error_over_allowed),
      state == ClaimState::kInPart ? " in part" : "");
}

}  // namespace lockstep::conformance
