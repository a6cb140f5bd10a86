// The report as Markdown, JSON and a page.
#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "conformance/report/conformance_report.h"
#include "conformance/report/sample_report.h"
#include "conformance/report/test_logs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"
#include "report/page_checks.h"
#include "report/write.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string Markdown(const ConformanceReport& report) {
  return MarkdownPage(ConformanceDocument(report));
}

TEST(ReportMarkdownTest, HasWhatFailedBeforeTheTable) {
  const std::string markdown = Markdown(SampleReport());
  EXPECT_THAT(
      markdown,
      AllOf(HasSubstr("# Conformance: 0 claims hold, 1 in part, 1 not run, 1 "
                      "fails; 3 tests pass, 1 fails, 2 skipped\n\n## Failed"
                      "\n\n- `//conformance:sums_test, Sums.C: "
                      "sums_test.cc:7 Expected: right Actual: wrong`\n"),
            HasSubstr("| claim | backend | type | 1 rank | 2 | 4 |\n"
                      "| --- | --- | --- | ---: | ---: | ---: |\n"),
            HasSubstr("| sums | processes | float32 | - | FAIL 12.5 | - |"),
            HasSubstr("| sums | threads | float16, float64 | 0.5 | - | - |"),
            HasSubstr("| sums | threads | float32 | 0.5 | not run | - |"),
            HasSubstr("| bits | mpi | float32 | - | - | skip |"),
            HasSubstr("- `skipped: //conformance:bits_test, 2 tests: no "
                      "mpirun here`\n"),
            HasSubstr("- 2 targets record claims, built: optimised\n"),
            HasSubstr("- `Compiler GCC 12; tests begun 2026-01-01T00:00:00.000 "
                      "to 2026-01-01T00:01:00.000`\n"),
            HasSubstr("`bazel run //conformance:report`\n")));
  EXPECT_LT(markdown.find("## Failed"), markdown.find("| claim |"));
}

TEST(ReportMarkdownTest, NamesWhatWasNotRun) {
  EXPECT_THAT(
      Markdown(SampleReport()),
      AllOf(HasSubstr("| absent | threads | float32 | not run | - | - |\n"),
            HasSubstr("- `not run: absent, threads, 1 of the 1 cell of "
                      "//conformance:absent_test`\n"),
            HasSubstr("- `not run: sums, threads, 1 of the 2 cells of "
                      "//conformance:sums_test`\n"),
            HasSubstr("| sums | gpus | skipped | | | |\n"),
            HasSubstr("- `skipped: sums, gpus, by //sums:gpu_test: needs a "
                      "GPU (--config=cuda runs it). It asks: small sums`\n")));
}

TEST(ReportMarkdownTest, ShowsARowOfAGpuThatFailed) {
  const std::vector<TestTarget> targets = {SampleTarget(
      "//sums:gpu_test", {SampleCase("A", TestOutcome::kFailed, {}, "bad")})};
  EXPECT_THAT(Markdown(MakeReport(targets, SampleClaims())),
              AllOf(HasSubstr("- `//sums:gpu_test, A: bad`\n"),
                    HasSubstr("- `sums: not shown to hold, since part of "
                              "//sums:gpu_test failed and recorded nothing`"),
                    HasSubstr("| FAIL sums | gpus | FAIL | | | |\n")));
}

TEST(ReportMarkdownTest, NamesWhatIsOlderThanTheCommit) {
  ConformanceReport report = SampleReport();
  EXPECT_THAT(Markdown(report), Not(HasSubstr("older")));
  MarkOlder(absl::FromUnixSeconds(1800000000), report);
  EXPECT_THAT(
      Markdown(report),
      AllOf(HasSubstr("; 2 of 2 targets older than the checked-out commit"),
            HasSubstr("made 2027-01-15T08:00:00Z, so of another tree unless "
                      "Bazel found nothing changed: all targets")));
  report.targets[0].older = false;
  EXPECT_THAT(Markdown(report),
              HasSubstr("nothing changed: //conformance:bits_test`\n"));
  const report::Value data = ConformanceDocument(report).data;
  EXPECT_EQ(data["targets"][1]["older"], true);
  EXPECT_EQ(data["committed"], "2027-01-15T08:00:00Z");
  report.targets.resize(8, report.targets[1]);
  report.targets[0].older = false;
  EXPECT_THAT(Markdown(report),
              HasSubstr("//conformance:bits_test and 2 more`\n"));
}

TEST(ReportMarkdownTest, SaysThatConfigurationsAreMixed) {
  ConformanceReport report = SampleReport();
  EXPECT_THAT(Markdown(report), Not(HasSubstr("configurations mixed")));
  report.targets[0].configurations = {"optimised, thread sanitizer"};
  EXPECT_THAT(Markdown(report),
              AllOf(HasSubstr("; 2 configurations mixed"),
                    HasSubstr("- 1 target records claims, built: optimised, "
                              "thread sanitizer\n")));
}

TEST(ReportMarkdownTest, SaysThatThereIsNoClaim) {
  EXPECT_THAT(Markdown(MakeReport({}, {})),
              AllOf(HasSubstr("No test recorded a claim."),
                    Not(HasSubstr("| claim |"))));
}

// Everything that comes from a test, a folder or a flag.
ConformanceReport Hostile(const std::string& text) {
  TestTarget target = SampleTarget(
      text, {SampleCase(text, TestOutcome::kFailed,
                        {SampleClaim(text, text, 2, text, 0.5)}, text),
             SampleCase(text, TestOutcome::kSkipped, {}, text),
             SampleCase(text, TestOutcome::kPassed,
                        {SampleClaim("sums", text, 1, text, 0.5)})});
  for (TestCaseResult& test : target.cases) {
    test.properties.back().second = text;
  }
  target.problems = {text};
  target.first_started = target.last_started = text;
  std::vector<KnownClaim> claims = SampleClaims();
  claims[0].rows = {{text, text, {text}, {1, 2}},
                    {text, text + "s", {}, {}, text}};
  ConformanceReport report = MakeReport({&target, 1}, claims);
  report.testlogs = text;
  report.origin = {.machine = {.cpu = text, .system = text},
                   .command = text,
                   .commit = text,
                   .created = text};
  report.versions = {{text, text}};
  return report;
}

TEST(ReportMarkdownTest, ShowsTextAsItIs) {
  const std::string text =
      "<b>|*x*`y`\n# z[1](2)\x07 &lt;~~a~~ _e_ @name #123 \xc2\x9b"
      "c";
  std::string markdown = Markdown(Hostile(text));
  const std::string shown =
      "*x*`y` # z[1](2)\xef\xbf\xbd &lt;~~a~~ _e_ @name #123 \xef\xbf\xbd"
      "c ``";
  EXPECT_THAT(markdown, HasSubstr(": <b>|" + shown));
  EXPECT_THAT(markdown, HasSubstr("| `` <b>\\|" + shown + " |"));
  EXPECT_THAT(markdown, Not(HasSubstr("\n# z")));
  EXPECT_THAT(markdown, Not(HasSubstr("\x07")));
  EXPECT_THAT(markdown, Not(HasSubstr("\xc2\x9b")));
  // Nowhere outside of code.
  for (size_t begin = markdown.find("`` "); begin != std::string::npos;
       begin = markdown.find("`` ")) {
    const size_t end = markdown.find(" ``", begin + 3);
    ASSERT_NE(end, std::string::npos);
    markdown.erase(begin, end + 3 - begin);
  }
  EXPECT_THAT(markdown, Not(HasSubstr("<b>")));
}

TEST(ReportMarkdownTest, CutsAMessageBetweenCharacters) {
  TestTarget target = SampleTarget("//conformance:sums_test", {});
  std::string euros;
  for (int i = 0; i < 200; ++i) euros += "\xe2\x82\xac";
  target.cases = {SampleCase("A", TestOutcome::kFailed, {}, euros)};
  // 133 of three bytes each.
  EXPECT_THAT(Markdown(MakeReport({&target, 1}, SampleClaims())),
              HasSubstr(": " + euros.substr(0, 399) + " ...`\n"));
}

TEST(ReportJsonTest, HasEveryCell) {
  const report::Value json = ConformanceDocument(SampleReport()).data;
  EXPECT_EQ(json["totals"]["claims_failed"], 1);
  EXPECT_EQ(json["totals"]["claims_in_part"], 1);
  EXPECT_EQ(json["totals"]["configurations"]["optimised"], 2);
  const report::Value& claim = json["claims"][0];
  EXPECT_EQ(claim["name"], "sums");
  EXPECT_EQ(claim["outcome"], "failed");
  EXPECT_EQ(claim["test"], "//conformance:sums_test");
  EXPECT_EQ(claim["rows"][0]["backend"], "processes");
  EXPECT_EQ(claim["gpu_rows"][0]["asks"], "small sums");
  EXPECT_EQ(claim["gpu_rows"][0]["outcome"], "skipped");
  EXPECT_EQ(claim["missing"][0]["cells"], 1);
  const report::Value& cell = claim["rows"][0]["cells"][0];
  EXPECT_EQ(cell["world_size"], 2);
  EXPECT_EQ(cell["outcome"], "failed");
  EXPECT_EQ(cell["error_over_allowed"], 12.5);
  EXPECT_EQ(cell["cases"], 10);
  EXPECT_EQ(json["claims"][1]["outcome"], "in_part");
  EXPECT_EQ(json["claims"][2]["outcome"], "not_run");
  EXPECT_EQ(json["claims"][2]["rows"][0]["cells"][0]["outcome"], "not_run");
  EXPECT_EQ(json["skipped"][0]["why"], "no mpirun here");
  EXPECT_EQ(json["targets"][0]["seconds"], 1.5);
  EXPECT_EQ(json["targets"][0]["started"], "2026-01-01T00:00:00.000");
  EXPECT_EQ(json["versions"]["Compiler"], "GCC 12");
}

TEST(ReportPageTest, IsWholeWhateverTheTestsSay) {
  const std::string plain = HtmlPage(ConformancePage(Hostile("plain")));
  ExpectWholePage(plain, /*charts=*/false);
  const std::string page = HtmlPage(
      ConformancePage(Hostile("</script><script>alert(1)</script><!--\xff")));
  ExpectWholePage(page, /*charts=*/false);
  ExpectSameElements(page, plain);
}

TEST(ReportPageTest, HasNoChartJs) {
  EXPECT_LT(HtmlPage(ConformancePage(SampleReport())).size(), 60000u);
}

}  // namespace
}  // namespace lockstep
