// Tests that the table of claims is complete, that a recorder's property and
// the report's reading of it agree, and the command `report` on folders like
// Bazel's.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/report/claims.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "models/io/fuzz_inputs.h"
#include "nlohmann/json.hpp"

namespace lockstep::conformance {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

// Each known claim needs a row; otherwise a claim that is not run would be left
// out. Its first row, which readers are referred to, records numbers. No test
// has a cell twice.
TEST(KnownClaimsTest, AreWhole) {
  std::set<std::string> names;
  std::set<std::tuple<std::string, std::string, std::string, std::string, int>>
      cells;
  for (const KnownClaim& claim : KnownClaims()) {
    SCOPED_TRACE(claim.name);
    EXPECT_TRUE(names.insert(claim.name).second);
    EXPECT_THAT(claim.says, testing::EndsWith("."));
    EXPECT_THAT(claim.allowed, Not(IsEmpty()));
    EXPECT_EQ(claim.exact(), claim.allowed.starts_with("none"));
    ASSERT_THAT(claim.rows, Not(IsEmpty()));
    EXPECT_THAT(claim.rows.front().test, StartsWith("//conformance"));
    for (const ExpectedRow& row : claim.rows) {
      EXPECT_THAT(row.backend, Not(IsEmpty()));
      EXPECT_THAT(row.test, StartsWith("//"));
      EXPECT_EQ(row.types.empty(), !row.gpu_asks.empty());
      EXPECT_EQ(row.world_sizes.empty(), !row.gpu_asks.empty());
      for (const std::string& type : row.types) {
        for (const int size : row.world_sizes) {
          EXPECT_TRUE(
              cells.insert({claim.name, row.backend, row.test, type, size})
                  .second)
              << row.backend;
        }
      }
    }
  }
}

class ClaimRecorderTest : public testing::Test {
 protected:
  // Keeps the properties out of this test's own XML, which the report also
  // reads.
  PropertySink Sink() {
    return [this](const std::string& name, const std::string& value) {
      properties_.emplace_back(name, value);
    };
  }

  // Returns the result that a recorder writes after `measure`.
  template <typename Measure>
  ClaimResult Recorded(const ClaimCellId& place, const Measure& measure) {
    {
      ClaimRecorder recorder(place, Sink());
      measure(recorder);
    }
    EXPECT_EQ(properties_.size(), 2u);
    EXPECT_THAT(properties_[0].first, StartsWith(kClaimProperty));
    const auto claim = ParseClaimResult(properties_[0].second);
    properties_.clear();
    EXPECT_THAT(claim, IsOk());
    return claim.ok() ? *claim : ClaimResult();
  }

  std::vector<std::pair<std::string, std::string>> properties_;
};

TEST_F(ClaimRecorderTest, KeepsTheLargestErrorOfAllCases) {
  const ClaimResult claim =
      Recorded({"gradients", "threads", 3, "float32"}, [](ClaimRecorder& r) {
        for (const double error : {0.25, 0.75, 0.5}) r.Measure(error);
      });
  EXPECT_EQ(claim, (ClaimResult{"gradients", "threads", 3, "float32", 3, 0.75,
                                /*exact=*/false}));
}

TEST_F(ClaimRecorderTest, TellsExactFromMeasured) {
  const ClaimResult exact = Recorded({"evaluation", "mpi", 1, "float32"},
                                     [](ClaimRecorder& r) { r.AddExact(7); });
  EXPECT_TRUE(exact.exact);
  EXPECT_EQ(exact.cases, 7);
  const ClaimResult measured = Recorded({"gradients", "threads", 1, "float32"},
                                        [](ClaimRecorder& r) { r.Measure(0); });
  EXPECT_FALSE(measured.exact);
  EXPECT_EQ(measured.error_over_allowed, 0);
}

TEST_F(ClaimRecorderTest, NanIsAnInfinity) {
  const ClaimResult claim =
      Recorded({"gradients", "threads", 3, "float32"}, [](ClaimRecorder& r) {
        r.Measure(std::nan(""));
        r.Measure(0.5);
      });
  EXPECT_EQ(claim.error_over_allowed, std::numeric_limits<double>::infinity());
}

TEST_F(ClaimRecorderTest, ClaimsOfOneTestHaveTheirOwnProperties) {
  {
    ClaimRecorder one({"epochs", "torch", 1, "indices"}, Sink());
    ClaimRecorder other({"epochs", "torch", 1, "indices"}, Sink());
    one.AddExact();
    other.AddExact();
  }
  ASSERT_EQ(properties_.size(), 4u);
  EXPECT_THAT(properties_[0].first, StartsWith(kClaimProperty));
  EXPECT_EQ(properties_[1].first, kConfigurationProperty);
  EXPECT_THAT(properties_[2].first, StartsWith(kClaimProperty));
  EXPECT_NE(properties_[0].first, properties_[2].first);
}

TEST_F(ClaimRecorderTest, FailsWhereItIsMisused) {
  EXPECT_NONFATAL_FAILURE(
      ClaimRecorder({"epochs", "torch", 1, "indices"}, Sink()),
      "nothing was measured of the claim epochs");
  EXPECT_NONFATAL_FAILURE(
      ClaimRecorder({"immortality", "threads", 1, "float32"}, Sink())
          .AddExact(),
      "immortality is not in claims.cc");
  EXPECT_NONFATAL_FAILURE(
      ClaimRecorder({"trained_bits", "mpi", 4, "float32"}, Sink()).Measure(0.9),
      "the claim trained_bits allows no error");
  EXPECT_NONFATAL_FAILURE(
      ClaimRecorder({"gradients", "threads", 4, "float32"}, Sink()).AddExact(),
      "the claim gradients allows an error");
}

TEST_F(ClaimRecorderTest, SaysHowTheTestWasBuiltAndRun) {
  { ClaimRecorder({"evaluation", "mpi", 1, "float32"}, Sink()).AddExact(); }
  ASSERT_EQ(properties_.size(), 2u);
  EXPECT_EQ(properties_[1].second, TestConfiguration());
  const std::string filter = testing::GTEST_FLAG(filter);
  testing::GTEST_FLAG(filter) = "*";
  const std::string whole = TestConfiguration();
  testing::GTEST_FLAG(filter) = "ClaimRecorderTest.*";
  EXPECT_EQ(TestConfiguration(), whole + ", filtered");
  testing::GTEST_FLAG(filter) = filter;
#ifdef __OPTIMIZE__
  EXPECT_THAT(whole, StartsWith("optimised"));
#else
  EXPECT_THAT(whole, StartsWith("not optimised"));
#endif
#ifdef __SANITIZE_ADDRESS__
  EXPECT_THAT(whole, HasSubstr("address sanitizer"));
#endif
#ifdef __SANITIZE_THREAD__
  EXPECT_THAT(whole, HasSubstr("thread sanitizer"));
#endif
}

TEST(RecordInXmlTest, IsAPropertyOfTheRunningTest) {
  RecordInXml("no_claim", "a value");
  const testing::TestResult& result =
      *testing::UnitTest::GetInstance()->current_test_info()->result();
  ASSERT_EQ(result.test_property_count(), 1);
  EXPECT_STREQ(result.GetTestProperty(0).key(), "no_claim");
  EXPECT_STREQ(result.GetTestProperty(0).value(), "a value");
}

TEST(ClaimResultTest, SurvivesAnyText) {
  const ClaimResult result = {.claim = "a\"<b>\n\x01\\",
                              .backend = "\xc3\xa9",
                              .world_size = 1024,
                              .type = "float32, bfloat16",
                              .cases = int64_t{1} << 40,
                              .error_over_allowed = 0x1.23456789abcdep-3};
  EXPECT_THAT(ParseClaimResult(FormatClaimResult(result)),
              IsOkAndHolds(result));
}

TEST(ClaimResultTest, RefusesWhatItDidNotWrite) {
  const std::string good = FormatClaimResult({.claim = "c"});
  ASSERT_THAT(ParseClaimResult(good), IsOk());
  const struct {
    const char* part;
    const char* in_its_place;
    const char* says;
  } kSpoilt[] = {
      {"\"claim\"", "\"klaim\"", "\"claim\""},
      {"\"world_size\":1", "\"world_size\":0", "\"world_size\""},
      {"\"world_size\":1", "\"world_size\":1e300", "\"world_size\""},
      {"\"world_size\":1", "\"world_size\":99999999999", "\"world_size\""},
      {"\"cases\":0", "\"cases\":-1", "\"cases\""},
      {"\"error_over_allowed\":0.0", "\"error_over_allowed\":-1",
       "\"error_over_allowed\""},
      {"\"error_over_allowed\":0.0", "\"error_over_allowed\":\"1\"",
       "\"error_over_allowed\""},
      {"\"exact\":false", "\"exact\":0", "\"exact\""},
      {"}", "", "no JSON object"},
      {"{", "[{", "no JSON object"},
  };
  for (const auto& spoilt : kSpoilt) {
    std::string text = good;
    const size_t at = text.find(spoilt.part);
    ASSERT_NE(at, std::string::npos) << spoilt.part << " in " << good;
    text.replace(at, std::string(spoilt.part).size(), spoilt.in_its_place);
    EXPECT_THAT(
        ParseClaimResult(text),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(spoilt.says)))
        << text;
  }
}

TEST(ClaimResultTest, AnyChangeIsReadOrRefused) {
  const std::vector<std::string> seeds = {
      FormatClaimResult({.claim = "gradients", .cases = 3}),
      FormatClaimResult({.claim = "epochs", .world_size = 8, .exact = true})};
  std::mt19937 random(29);
  int read = 0, refused = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string text = MutateSeed(seeds, random);
    const auto claim = ParseClaimResult(text);
    if (!claim.ok()) {
      ++refused;
      continue;
    }
    ++read;
    ASSERT_GE(claim->world_size, 1) << text;
    ASSERT_GE(claim->cases, 0) << text;
    ASSERT_GE(claim->error_over_allowed, 0) << text;
  }
  // The loop saw valid and invalid texts.
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

constexpr int kDeadlineSeconds = 30;
// A test that records gradients.
constexpr char kTest[] = "training/gradient_equivalence_test";

// Runs the command without the folders of `bazel run`. Tests do not inherit
// them, but a user's shell may.
CommandOutcome RunReport(const std::string& flags,
                         const std::string& environment = "") {
  return RunCommand(
      absl::StrCat("env -u BUILD_WORKSPACE_DIRECTORY "
                   "-u BUILD_WORKING_DIRECTORY ",
                   environment, " conformance/report/report ", flags),
      kDeadlineSeconds);
}

class ReportTest : public testing::Test {
 protected:
  ReportTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(folder_);
  }

  // Writes the XML of a test with one case.
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
      AllOf(StartsWith("# Lockstep report: 0 claims hold, 1 in part, 25 not "
                       "run, 0 fail; 2 tests pass, "),
            HasSubstr("| gradients | threads | float32 | not run | 0.25 | "
                      "not run | 0.5 |"),
            HasSubstr("Compiler "), HasSubstr("oneDNN "), HasSubstr("Wrote ")));
  const auto json = nlohmann::json::parse(
      ReadFile(folder_ + "/out/conformance.json").value_or(""), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["totals"]["tests_passed"], 2);
  EXPECT_EQ(json["failures"].size(), 0u);
  EXPECT_THAT(
      outcome.output,
      StartsWith(ReadFile(folder_ + "/out/conformance.md").value_or("")));
  EXPECT_THAT(ReadFile(folder_ + "/out/conformance.html").value_or(""),
              HasSubstr("</html>"));
}

TEST_F(ReportTest, RequireAllIsOneWhereAnythingWasNotRun) {
  WriteTest(kTest, Gradients(2, 0.25));
  EXPECT_EQ(RunReport(Flags()).exit_status, 0);
  EXPECT_EQ(RunReport(Flags() + " --require_all").exit_status, 1);
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
  // A fake git gives a commit time after January 2026, when the tests started.
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
  EXPECT_THAT(ReadFile(folder_ + "/there/out/conformance.md").value_or(""),
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
  ExpectUsage(RunReport("--help"), "report");
}

}  // namespace
}  // namespace lockstep::conformance
