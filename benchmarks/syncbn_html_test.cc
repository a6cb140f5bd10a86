// The page: nothing outside it, and nothing in it that its strings could break.
#include "benchmarks/syncbn_html.h"

#include <string>

#include "benchmarks/syncbn_example.h"
#include "benchmarks/syncbn_json.h"
#include "benchmarks/syncbn_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/page_checks.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(SyncBnHtmlTest, IsAWholePageThatLoadsNothing) {
  const std::string page = FormatSyncBnHtml(ExampleSyncBnReport());
  ExpectWholePage(page);
  EXPECT_THAT(page, HasSubstr("<h1>Lockstep SyncBN report</h1>"));
  EXPECT_THAT(page, HasSubstr("or read syncbn.json."));
}

TEST(SyncBnHtmlTest, HoldsTheReport) {
  const SyncBnReport report = ExampleSyncBnReport();
  EXPECT_EQ(EmbeddedReport(FormatSyncBnHtml(report)), SyncBnJson(report));
}

TEST(SyncBnHtmlTest, KeepsHostileStringsInsideTheirElement) {
  SyncBnReport report = ExampleSyncBnReport();
  const std::string plain = FormatSyncBnHtml(report);
  report.command = "</script><script>alert(1)</script><!-- <b> /*SCRIPT*/";
  report.peer = "</table>";
  const std::string page = FormatSyncBnHtml(report);
  ExpectSameElements(page, plain);
  EXPECT_EQ(EmbeddedReport(page)["command"], report.command);
}

}  // namespace
}  // namespace lockstep
