// XML of GoogleTest's, of Bazel's, and of nobody's.
#include "conformance/report/test_xml.h"

#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/fuzz/mutate.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

// As GoogleTest 1.12 and later write it.
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
  ASSERT_EQ(xml->cases.size(), 5u);
  EXPECT_EQ(xml->cases[0].name, "Ranks/SumTest.IsRight/P2");
  EXPECT_EQ(xml->cases[0].outcome, TestOutcome::kPassed);
  EXPECT_EQ(xml->cases[0].seconds, 0.5);
  EXPECT_THAT(xml->cases[0].properties, IsEmpty());
  EXPECT_EQ(xml->cases[1].outcome, TestOutcome::kFailed);
  EXPECT_EQ(xml->cases[1].message, "a.cc:7\nExpected: 1 < 0");
  EXPECT_THAT(xml->cases[1].properties,
              ElementsAre(Pair("one", "{\"a\":<1>}"), Pair("two", "")));
  EXPECT_EQ(xml->cases[2].outcome, TestOutcome::kSkipped);
  EXPECT_EQ(xml->cases[2].message, "a.cc:5\nno mpirun");
  EXPECT_EQ(xml->cases[3].outcome, TestOutcome::kSkipped);
  EXPECT_EQ(xml->cases[3].message, "disabled");
  EXPECT_EQ(xml->cases[4].outcome, TestOutcome::kFailed);
  EXPECT_EQ(xml->cases[4].message, "and failed");
}

// As Bazel's generate-xml.sh writes it for a test that wrote none.
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
  ASSERT_EQ(xml->cases.size(), 1u);
  EXPECT_EQ(xml->cases[0].name, "a/b_test");
  EXPECT_EQ(xml->cases[0].outcome, TestOutcome::kFailed);
  EXPECT_EQ(xml->cases[0].message, "exited with error code 139");
}

TEST(ParseTestXmlTest, TakesTheTextWhereThereIsNoMessage) {
  const auto xml = ParseTestXml(
      "<testsuite><testcase name='a'><failure>it <![CDATA[<broke>]]></failure>"
      "<system-out>not this</system-out></testcase></testsuite>");
  ASSERT_THAT(xml, IsOk());
  EXPECT_EQ(xml->cases[0].message, "it <broke>");
}

TEST(ParseTestXmlTest, AShardMayHaveNoTest) {
  const auto xml = ParseTestXml("<testsuites tests='0'></testsuites>");
  ASSERT_THAT(xml, IsOk());
  EXPECT_THAT(xml->cases, IsEmpty());
}

TEST(ParseTestXmlTest, RefusesWhatIsNoTestsXml) {
  const std::pair<const char*, const char*> kBad[] = {
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
  };
  for (const auto& [text, says] : kBad) {
    EXPECT_THAT(ParseTestXml(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(says), Not(HasSubstr("\n")))))
        << text;
  }
}

TEST(ParseTestXmlTest, RefusesEndlessDepth) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "<testsuite>";
  EXPECT_THAT(ParseTestXml(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                           "its elements are too deep"));
}

// Every beginning of a good file is refused, and none is the end of anything.
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
    const std::string text = Mutated(seeds, random);
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

}  // namespace
}  // namespace lockstep
