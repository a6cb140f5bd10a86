// Tests XML from GoogleTest, from Bazel and from neither, and folders as Bazel
// leaves them, also after a crash.
#include "conformance/report/test_logs.h"

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/fuzz_inputs.h"

namespace lockstep::conformance {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// The format of GoogleTest 1.12 and later.
constexpr char kGoogleTest[] = R"xml(<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="5" failures="1" disabled="1" errors="0" time="7.5" timestamp="2026-01-02T03:04:05.678" name="AllTests">
  <properties><property name="of_all" value="1"/></properties>
  <testsuite name="Ranks/SumTest" tests="5" failures="1" disabled="1" skipped="1" errors="0" time="7" timestamp="2026-01-02T03:04:06.000">
    <testcase name="IsRight/P2" value_param="(4-byte object &lt;01-00&gt;, 2)" file="a.cc" line="1" status="run" result="completed" time="0.5" timestamp="x" classname="Ranks/SumTest" />
    <testcase name="IsRight/P3" file="a.cc" line="1" status="run" result="completed" time="1.25" classname="Ranks/SumTest">
      <failure message="a.cc:7&#x0A;Expected: 1 &lt; 0" type=""><![CDATA[a.cc:7
Expected: 1 < 0]]></failure>
      <failure message="a.cc:9&#x0A;second" type=""><![CDATA[second]]></failure>
      <properties>
        <property name="one" value="{&quot;a&quot;:&lt;1&gt;}"/>
        <property name="two" value=""/>
      </properties>
    </testcase>
    <testcase name="IsRight/P4" status="run" result="skipped" time="0" classname="Ranks/SumTest">
      <skipped message="a.cc:5&#x0A;no mpirun"><![CDATA[a.cc:5
no mpirun]]></skipped>
    </testcase>
    <testcase name="DISABLED_Slow" status="notrun" result="suppressed" time="0" classname="Ranks/SumTest" />
    <testcase name="Both" status="run" result="skipped" time="0" classname="Ranks/SumTest">
      <skipped message="skipped"/>
      <failure message="and failed"/>
      <skipped message="skipped again"/>
    </testcase>
  </testsuite>
</testsuites>
)xml";

TEST(ParseTestXmlTest, ReadsGoogleTests) {
  const auto xml = ParseTestXml(kGoogleTest);
  ASSERT_THAT(xml, IsOk());
  EXPECT_EQ(xml->started, "2026-01-02T03:04:05.678");
  const std::string suite = "Ranks/SumTest.";
  const std::vector<TestCaseResult> cases = {
      {suite + "IsRight/P2", TestOutcome::kPassed, "", 0.5},
      {suite + "IsRight/P3",
       TestOutcome::kFailed,
       "a.cc:7\nExpected: 1 < 0",
       1.25,
       {{"one", "{\"a\":<1>}"}, {"two", ""}}},
      {suite + "IsRight/P4", TestOutcome::kSkipped, "a.cc:5\nno mpirun"},
      {suite + "DISABLED_Slow", TestOutcome::kSkipped, "disabled"},
      {suite + "Both", TestOutcome::kFailed, "and failed"}};
  EXPECT_EQ(xml->cases, cases);
}

// The format of Bazel's generate-xml.sh, for a test that wrote no XML.
TEST(ParseTestXmlTest, ReadsBazelsForATestThatCrashed) {
  const auto xml = ParseTestXml(R"(<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="a/b_test" tests="1" failures="0" errors="1">
    <testcase name="a/b_test" status="run" duration="3" time="3"><error message="exited with error code 139"></error></testcase>
      <system-out>
Generated test.log (if the file is not UTF-8, then this may be unreadable):
<![CDATA[Segmentation fault <testcase name="none"/>]]>
      </system-out>
    </testsuite>
</testsuites>)");
  ASSERT_THAT(xml, IsOk());
  EXPECT_EQ(xml->started, "");
  EXPECT_THAT(xml->cases,
              ElementsAre(TestCaseResult{"a/b_test", TestOutcome::kFailed,
                                         "exited with error code 139", 3}));
}

TEST(ParseTestXmlTest, TakesTheTextWhereThereIsNoMessage) {
  const auto xml = ParseTestXml(
      "<testsuite><testcase name='a'><failure>it <![CDATA[<broke>]]></failure>"
      "<system-out>not this</system-out></testcase></testsuite>");
  ASSERT_THAT(xml, IsOk());
  EXPECT_EQ(xml->cases[0].message, "it <broke>");
  const auto none = ParseTestXml("<testsuites tests='0'></testsuites>");
  ASSERT_THAT(none, IsOk());
  EXPECT_THAT(none->cases, IsEmpty());  // The XML of a shard without tests.
}

TEST(ParseTestXmlTest, RefusesWhatIsNoTestsXml) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "<testsuite>";
  const std::pair<std::string, const char*> kBad[] = {
      {"", "no element found"},
      {"{}", "line 1: "},
      {"<testsuites>\n<testsuite>\n", "line 3: no element found"},
      {"<testsuites>\n</testsuite>", "line 2: mismatched tag"},
      {"<testsuites/><testsuites/>", "line 1: junk after document element"},
      {"<testsuites a='1' a='2'/>", "line 1: duplicate attribute"},
      {"<testsuites>\xff</testsuites>", "line 1: not well-formed"},
      {"<testsuites>&what;</testsuites>", "line 1: undefined entity"},
      {"<html></html>", "it begins with <html>"},
      {"<!DOCTYPE lolz [<!ENTITY lol 'lol'>]><testsuites/>",
       "it has a document type"},
      {deep, "its elements are too deep"},
  };
  for (const auto& [text, says] : kBad) {
    EXPECT_THAT(ParseTestXml(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(says), Not(HasSubstr("\n")))))
        << text.substr(0, 100);
  }
}

// Every proper prefix of a valid file is rejected.
TEST(ParseTestXmlTest, RefusesEveryBeginning) {
  const std::string text = kGoogleTest;
  for (size_t size = 0; size + 2 < text.size(); ++size) {
    EXPECT_THAT(ParseTestXml(text.substr(0, size)),
                StatusIs(absl::StatusCode::kInvalidArgument, Not(IsEmpty())))
        << size;
  }
}

TEST(ParseTestXmlTest, AnyChangeIsReadOrRefusedInOneLine) {
  const std::vector<std::string> seeds = {
      kGoogleTest,
      "<testsuite><testcase name='a'><error message='b'/></testcase>"
      "</testsuite>"};
  std::mt19937 random(23);
  int read = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string text = MutateSeed(seeds, random);
    const auto xml = ParseTestXml(text);
    if (xml.ok()) {
      ++read;
      continue;
    }
    ASSERT_THAT(xml, StatusIs(absl::StatusCode::kInvalidArgument,
                              AllOf(Not(IsEmpty()), Not(HasSubstr("\n")))))
        << text;
  }
  EXPECT_GT(read, 100);
  EXPECT_LT(read, 4900);
}

constexpr char kPassing[] =
    "<testsuites timestamp='2026-01-02'><testsuite><testcase name='a'/>"
    "</testsuite></testsuites>";
constexpr char kFailing[] =
    "<testsuites timestamp='2026-01-01'><testsuite><testcase name='b'>"
    "<failure message='broken'/></testcase></testsuite></testsuites>";

// Returns TestResultData as Bazel writes it: field 1 (if it is not the default,
// as for a timeout), fields 2 and 3, and some later fields.
std::string StatusBytes(int status) {
  std::string bytes = status != 3 ? "" : std::string("\x08\x00", 2);
  bytes += std::string("\x10", 1) + static_cast<char>(status == 1);
  bytes += std::string("\x18", 1) + static_cast<char>(status);
  return bytes + "\x30" + std::string(1, '\0') + "R\x04/log";
}

constexpr int kPassed = 1, kFlaky = 2, kTimeout = 3, kFailed = 4;

class TestLogsTest : public testing::Test {
 protected:
  TestLogsTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(folder_ + "/conformance");
  }

  void Write(const std::string& path, absl::string_view text,
             int minutes_ago = 0) {
    const std::filesystem::path file = folder_ + "/conformance/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type::clock::now() -
                  std::chrono::minutes(minutes_ago));
  }

  // Writes the files that Bazel leaves in a test's folder: an XML and its
  // status.
  void WriteResult(const std::string& folder, absl::string_view xml,
                   int status = kPassed, int minutes_ago = 0) {
    Write(folder + "/test.xml", xml, minutes_ago);
    Write(folder + "/test.cache_status", StatusBytes(status), minutes_ago);
  }

  // Returns the only target; an empty one if there are others.
  TestTarget Read() {
    const auto targets = ReadTestLogs(folder_);
    EXPECT_THAT(targets, IsOk());
    if (!targets.ok()) return {};
    EXPECT_EQ(targets->size(), 1u);
    return targets->size() == 1 ? (*targets)[0] : TestTarget();
  }

  const std::string folder_;
};

TEST_F(TestLogsTest, LabelsAreOfTheFolders) {
  WriteResult("b/b_test", kPassing);
  WriteResult("a_test", kFailing, kFailed);
  Write("a_test/test.log", "log");
  Write("a_test/test.outputs/outputs.zip", "zip");
  const auto targets = ReadTestLogs(folder_);
  ASSERT_THAT(targets, IsOk());
  ASSERT_EQ(targets->size(), 2u);
  EXPECT_EQ((*targets)[0].label, "//conformance/b:b_test");
  EXPECT_EQ((*targets)[1].label, "//conformance:a_test");
  EXPECT_THAT((*targets)[0].problems, IsEmpty());
  // A failed case adds no further problem.
  EXPECT_THAT((*targets)[1].problems, IsEmpty());
  EXPECT_EQ((*targets)[0].cases[0].outcome, TestOutcome::kPassed);
  EXPECT_EQ((*targets)[1].cases[0].outcome, TestOutcome::kFailed);
}

TEST_F(TestLogsTest, ShardsAreOneTarget) {
  WriteResult("a_test/shard_1_of_2", kPassing);
  WriteResult("a_test/shard_2_of_2", kFailing, kFailed);
  const TestTarget target = Read();
  EXPECT_EQ(target.label, "//conformance:a_test");
  ASSERT_EQ(target.cases.size(), 2u);
  EXPECT_THAT(target.problems, IsEmpty());
  EXPECT_EQ(target.first_started, "2026-01-01");
  EXPECT_EQ(target.last_started, "2026-01-02");
}

TEST_F(TestLogsTest, AMissingShardIsAProblem) {
  WriteResult("a_test/shard_1_of_4", kPassing);
  WriteResult("a_test/shard_3_of_4", kPassing);
  EXPECT_THAT(Read().problems, ElementsAre("2 of its 4 shards left no result"));
}

TEST_F(TestLogsTest, RunsOfShardsAreRead) {
  for (const char* part : {"shard_1_of_2_run_1_of_2", "shard_2_of_2_run_1_of_2",
                           "shard_1_of_2_run_2_of_2"}) {
    WriteResult(absl::StrCat("a_test/", part), kPassing);
  }
  const TestTarget target = Read();
  EXPECT_EQ(target.cases.size(), 3u);
  EXPECT_THAT(target.problems, ElementsAre("1 of its 4 shards left no result"));
}

// Names that Bazel never uses are not shards of the target above them.
TEST_F(TestLogsTest, OtherNamesAreNoShards) {
  WriteResult("a_test/shard_1_of_2", kPassing);
  std::string long_name = "run_1_of_9999";
  for (int i = 0; i < 5; ++i) long_name += "_run_1_of_9999";
  const std::string kNames[] = {"shard_01_of_2",
                                "shard_2_of_02",
                                "shard_+2_of_2",
                                "shard_0_of_2",
                                "shard_3_of_2",
                                "shard_1_of_99999",
                                "shard_1_of_2_shard_2_of_2",
                                "run_1_of_2_shard_2_of_2",
                                "run_1_of_2_run_2_of_2",
                                "shard_2_of_2_",
                                long_name};
  for (const std::string& name : kNames) {
    WriteResult("a_test/" + name, kPassing);
    const auto targets = ReadTestLogs(folder_);
    ASSERT_THAT(targets, IsOk());
    ASSERT_EQ(targets->size(), 2u) << name;
    EXPECT_EQ((*targets)[0].label, "//conformance/a_test:" + name);
    EXPECT_THAT((*targets)[1].problems,
                ElementsAre("1 of its 2 shards left no result"))
        << name;
    std::filesystem::remove_all(folder_ + "/conformance/a_test/" + name);
  }
}

TEST_F(TestLogsTest, NamedTestsElsewhereAreReadToo) {
  WriteResult("a_test", kPassing);
  WriteResult("../gpus/cuda/b_test/shard_1_of_1", kFailing, kFailed);
  WriteResult("../gpus/cuda/other_test", kFailing, kFailed);
  const std::vector<std::string> labels = {
      "//gpus/cuda:b_test", "//gpus/cuda:none_test", "//conformance:a_test"};
  const auto targets = ReadTestLogs(folder_, labels);
  ASSERT_THAT(targets, IsOk());
  ASSERT_EQ(targets->size(), 2u);
  EXPECT_EQ((*targets)[0].label, "//conformance:a_test");
  EXPECT_THAT((*targets)[0].problems, IsEmpty());
  EXPECT_EQ((*targets)[0].cases.size(), 1u);
  EXPECT_EQ((*targets)[1].label, "//gpus/cuda:b_test");
  EXPECT_EQ((*targets)[1].cases[0].outcome, TestOutcome::kFailed);
}

TEST_F(TestLogsTest, ResultsOfAnOlderShardCountAreLeftOut) {
  WriteResult("a_test/shard_1_of_2", kPassing, kPassed, /*minutes_ago=*/1);
  WriteResult("a_test/shard_2_of_2", kPassing, kPassed, /*minutes_ago=*/9);
  WriteResult("a_test/shard_1_of_3", kFailing, kFailed, /*minutes_ago=*/2);
  WriteResult("a_test", kFailing, kFailed, /*minutes_ago=*/3);
  const TestTarget target = Read();
  EXPECT_EQ(target.cases.size(), 2u);
  EXPECT_EQ(target.cases[0].outcome, TestOutcome::kPassed);
  EXPECT_THAT(target.problems, IsEmpty());
}

TEST_F(TestLogsTest, SaysWhatIsWrongBesideTheCases) {
  const auto expect_problem = [&](const auto& says) {
    EXPECT_THAT(Read().problems, ElementsAre(says));
    std::filesystem::remove_all(folder_ + "/conformance/a_test");
  };
  WriteResult("a_test/shard_2_of_2", kPassing);
  Write("a_test/shard_1_of_2/test.log", "Segmentation fault");
  expect_problem("shard 1 of 2: it wrote no test.xml");
  Write("a_test/test.xml", "<testsuites>\n");
  expect_problem("its test.xml cannot be read: line 2: no element found");
  Write("a_test/test.xml/file", "");
  expect_problem(HasSubstr("test.xml"));
  // A test without a status may have failed after it wrote its XML.
  Write("a_test/test.xml", kPassing);
  expect_problem("Bazel left no status for it");
  for (const std::string& bytes :
       {std::string(), std::string("hello"), std::string("\x18"),
        std::string("\x10\x01"), std::string("\x18\xff"), StatusBytes(0)}) {
    Write("a_test/test.xml", kPassing);
    Write("a_test/test.cache_status", bytes);
    expect_problem("Bazel left no status for it");
  }
  Write("a_test/test.xml", kPassing);
  Write("a_test/test.cache_status/file", "");
  expect_problem(HasSubstr("test.cache_status: is not a regular"));
  Write("a_test/file", "");
  std::filesystem::create_symlink("test.xml",
                                  folder_ + "/conformance/a_test/test.xml");
  expect_problem(HasSubstr("test.xml: cannot open"));
  // A sanitizer's complaint or a crash after the last test, and other failures.
  for (const int status : {kFailed, 5, 6, 9, 127}) {
    WriteResult("a_test", kPassing, status);
    expect_problem("it failed although no case did: it ended badly");
  }
  WriteResult("a_test", kPassing, kFlaky);
  expect_problem("it failed before it passed");
}

TEST_F(TestLogsTest, ATimeoutIsAProblem) {
  WriteResult("a_test",
              "<testsuites><testsuite><testcase name='a_test'><error "
              "message='exited with error code 142'/></testcase></testsuite>"
              "</testsuites>",
              kTimeout);
  const TestTarget target = Read();
  EXPECT_THAT(target.problems, ElementsAre("it ran past its time limit"));
  EXPECT_THAT(target.cases, IsEmpty());
}

TEST_F(TestLogsTest, NoFolderAndNoResultAreErrors) {
  EXPECT_THAT(ReadTestLogs(folder_ + "/none"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/none/conformance: No such file")));
  EXPECT_THAT(ReadTestLogs(folder_),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no result of a test in ")));
}

}  // namespace
}  // namespace lockstep::conformance
