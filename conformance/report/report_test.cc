// The command `report`, on folders such as Bazel leaves.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/run_command.h"
#include "conformance/report/claims.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kDeadlineSeconds = 30;
// One that records gradients.
constexpr char kTest[] = "gradient_equivalence_test";

// As tests inherit neither folder of `bazel run`, but a user's may.
CommandOutcome RunReport(const std::string& flags,
                         const std::string& environment = "") {
  return RunCommand(
      absl::StrCat("env -u BUILD_WORKSPACE_DIRECTORY "
                   "-u BUILD_WORKING_DIRECTORY ",
                   environment, " conformance/report/report ", flags),
      kDeadlineSeconds);
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ReportTest : public testing::Test {
 protected:
  ReportTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(folder_);
  }

  // The XML of a test with one case.
  void WriteTest(const std::string& test, const ClaimResult& claim,
                 const std::string& inside = "") {
    Write(test + "/test.cache_status",
          inside.empty() ? "\x10\x01\x18\x01" : "\x10\x02\x18\x04");
    const std::string property = absl::StrReplaceAll(
        FormatClaimResult(claim), {{"\"", "&quot;"}, {"<", "&lt;"}});
    Write(test + "/test.xml",
          absl::StrCat("<testsuites timestamp='2026-01-02T03:04:05'>"
                       "<testsuite><testcase classname='Suite' name='Case'>",
                       inside, "<properties><property name='", kClaimProperty,
                       "0' value=\"", property,
                       "\"/></properties></testcase></testsuite>"
                       "</testsuites>"));
  }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file =
        absl::StrCat(folder_, "/bazel-testlogs/conformance/", path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }

  std::string Flags() const {
    return absl::StrCat("--testlogs=", folder_,
                        "/bazel-testlogs --output_dir=", folder_, "/out");
  }

  const std::string folder_;
};

ClaimResult Gradients(int world_size, double error) {
  return {"gradients", "threads", world_size, "float32", 12, error, false};
}

TEST_F(ReportTest, WhatPassesIsATableAndZero) {
  WriteTest(absl::StrCat(kTest, "/shard_1_of_2"), Gradients(2, 0.25));
  WriteTest(absl::StrCat(kTest, "/shard_2_of_2"), Gradients(4, 0.5));
  const CommandOutcome outcome = RunReport(Flags());
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(
      outcome.output,
      AllOf(StartsWith("# Conformance: 0 claims hold, 1 in part, 14 not run, "
                       "0 fail; 2 tests pass, "),
            HasSubstr("| gradients | threads | float32 | not run | 0.25 | "
                      "not run | 0.5 |"),
            HasSubstr("Compiler "), HasSubstr("oneDNN "), HasSubstr("Wrote ")));
  const auto json = nlohmann::json::parse(
      ReadText(folder_ + "/out/conformance.json"), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["totals"]["tests_passed"], 2);
  EXPECT_EQ(json["failures"].size(), 0u);
  EXPECT_THAT(outcome.output,
              StartsWith(ReadText(folder_ + "/out/conformance.md")));
  EXPECT_THAT(ReadText(folder_ + "/out/conformance.html"),
              HasSubstr("</html>"));
}

TEST_F(ReportTest, RequireAllIsOneWhereAnythingWasNotRun) {
  WriteTest(kTest, Gradients(2, 0.25));
  EXPECT_EQ(RunReport(Flags()).exit_status, 0);
  EXPECT_EQ(RunReport(Flags() + " --require_all").exit_status, 1);
}

TEST_F(ReportTest, WhatNobodyExpectsIsOne) {
  ClaimResult claim = Gradients(2, 0.25);
  claim.backend = "thraeds";
  WriteTest(kTest, claim);
  const CommandOutcome outcome = RunReport(Flags());
  EXPECT_EQ(outcome.exit_status, 1) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("it recorded the claim gradients on thraeds"));
}

TEST_F(ReportTest, ATestOfAGpuThatFailedIsOne) {
  WriteTest(kTest, Gradients(2, 0.25));
  const std::string gpu = "../collectives/nccl/nccl_communicator_gpu_test";
  Write(gpu + "/test.xml",
        "<testsuites><testsuite><testcase name='a'><failure message='bad'/>"
        "</testcase></testsuite></testsuites>");
  Write(gpu + "/test.cache_status", "\x10\x02\x18\x04");
  const CommandOutcome outcome = RunReport(Flags());
  EXPECT_EQ(outcome.exit_status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("| FAIL collectives | nccl | FAIL |"));
}

TEST_F(ReportTest, SaysWhatIsOlderThanTheCommit) {
  WriteTest(kTest, Gradients(2, 0.25));
  // In git's place: the tests began in January 2026.
  Write("../../bin/git", "#!/bin/sh\necho 1800000000\n");
  std::filesystem::permissions(folder_ + "/bin/git",
                               std::filesystem::perms::owner_all);
  const CommandOutcome outcome =
      RunReport(Flags(), absl::StrCat("BUILD_WORKSPACE_DIRECTORY=", folder_,
                                      " PATH=", folder_, "/bin:$PATH"));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("; 1 of 1 targets older than the checked-out"),
                    HasSubstr("made 2027-01-15T08:00:00Z")));
}

TEST_F(ReportTest, WhatFailsComesFirstAndIsOne) {
  WriteTest(kTest, Gradients(2, 0.25));
  WriteTest("b_test", Gradients(4, 40), "<failure message='b.cc:1&#x0A;bad'/>");
  Write("c_test/test.log", "Segmentation fault");
  Write("d_test/test.xml", "<testsuites>");
  const CommandOutcome outcome = RunReport(Flags());
  EXPECT_EQ(outcome.exit_status, 1) << outcome.output;
  EXPECT_THAT(
      outcome.output,
      AllOf(HasSubstr("- `//conformance:b_test, Suite.Case: b.cc:1 bad`\n"),
            HasSubstr("- `//conformance:c_test: it wrote no test.xml`\n"),
            HasSubstr("- `//conformance:d_test: its test.xml cannot be "
                      "read: line 1: no element found`\n"),
            HasSubstr("| not run | 0.25 | not run | FAIL 40 |")));
  EXPECT_LT(outcome.output.find("d_test"), outcome.output.find("| claim |"));
}

TEST_F(ReportTest, FindsTheWorkspacesLogs) {
  WriteTest(kTest, Gradients(2, 0.25));
  const CommandOutcome outcome =
      RunReport("--output_dir=there/out",
                absl::StrCat("BUILD_WORKSPACE_DIRECTORY=", folder_,
                             " BUILD_WORKING_DIRECTORY=", folder_));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(ReadText(folder_ + "/there/out/conformance.md"),
              AllOf(HasSubstr("| gradients |"),
                    HasSubstr("`bazel run //conformance:report -- "
                              "--output_dir=there/out`")));
}

TEST_F(ReportTest, NoLogsAreOneLine) {
  for (const char* flags : {"--testlogs=/no/such", "--testlogs=/dev/null"}) {
    const CommandOutcome outcome =
        RunReport(absl::StrCat(flags, " --output_dir=", folder_, "/out"));
    EXPECT_EQ(outcome.exit_status, 1) << flags;
    EXPECT_THAT(outcome.output,
                AllOf(StartsWith("report: no test logs in /"),
                      HasSubstr("run bazel test //conformance/... first")));
    EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1);
  }
  Write("readme", "");
  const CommandOutcome outcome = RunReport(Flags());
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output, StartsWith("report: no result of a test in /"));
}

TEST(ReportFlagsTest, WrongOnesAreOneLine) {
  ExpectUsageError(RunReport("--no_such_flag"), "report", "--no_such_flag",
                   "no_such_flag");
  ExpectUsageError(RunReport("stray"), "report", "stray", "stray");
  ExpectUsageError(RunReport("--output_dir=/proc/none"), "report",
                   "--output_dir", "--output_dir: cannot write to /proc/none");
}

TEST(ReportFlagsTest, HelpSaysEveryFlag) {
  const CommandOutcome outcome = RunReport("--help");
  EXPECT_EQ(outcome.exit_status, 0);
  for (const char* flag : {"--testlogs=", "--output_dir=", "--require_all"}) {
    EXPECT_THAT(outcome.output, HasSubstr(flag));
  }
  for (const absl::string_view line : absl::StrSplit(outcome.output, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
}

}  // namespace
}  // namespace lockstep
