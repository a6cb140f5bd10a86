// Tests of values, of numbers and text as reports show them, of the machine,
// and of the files.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"
#include "report/write.h"

namespace lockstep {
namespace {

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

TEST(CpuModelTest, IsTheFirstModelName) {
  EXPECT_EQ(CpuModel("processor\t: 0\nmodel\t\t: 17\n"
                     "model name\t: Example 9000: the fast one \n"
                     "model name\t: Another\n"),
            "Example 9000: the fast one");
  EXPECT_EQ(CpuModel(""), "unknown CPU");
  EXPECT_EQ(CpuModel("processor : 0\nno colon here\n"), "unknown CPU");
}

TEST(DescribeMachineTest, KnowsThisMachine) {
  const Machine machine = DescribeMachine();
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_FALSE(machine.system.empty());
  EXPECT_GT(machine.memory_bytes, 1 << 20);
}

TEST(CheckedOutCommitTest, FollowsTheHead) {
  const std::string packed =
      absl::StrCat("# pack-refs with: peeled\n", std::string(40, 'f'),
                   " refs/heads/mainline\n", kCommit, " refs/heads/main\n");
  const std::string commit = absl::StrCat(kCommit, "\n");
  const struct {
    const char* name;
    std::map<std::string, std::string> files;  // The files in .git.
    std::string want;
  } kCases[] = {
      {"loose",
       {{"HEAD", "ref: refs/heads/main\n"}, {"refs/heads/main", commit}},
       kCommit},
      {"packed",
       {{"HEAD", "ref: refs/heads/main\n"}, {"packed-refs", packed}},
       kCommit},
      {"detached", {{"HEAD", commit}}, kCommit},
      {"bare", {}, ""},
      {"unborn", {{"HEAD", "ref: refs/heads/unborn\n"}}, ""},
      {"other", {{"HEAD", "something else\n"}}, ""}};
  for (const auto& test : kCases) {
    const std::string folder = absl::StrCat(testing::TempDir(), "/", test.name);
    std::filesystem::create_directories(folder + "/.git/refs/heads");
    for (const auto& [file, text] : test.files) {
      std::ofstream(absl::StrCat(folder, "/.git/", file)) << text;
    }
    EXPECT_EQ(CheckedOutCommit(folder), test.want) << test.name;
  }
  EXPECT_EQ(CheckedOutCommit(testing::TempDir() + "/absent"), "");
}

// Paths to which a file can be written, and paths to which it cannot.

using ::testing::StartsWith;

// Returns a path in this test's own folder.
std::string PathOf(const std::string& name) {
  const std::string folder = absl::StrCat(
      ::testing::TempDir(), "/",
      ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::filesystem::create_directories(folder);
  return absl::StrCat(folder, "/", name);
}

TEST(JsonFileTest, AcceptsWhatItCanWrite) {
  unsetenv("BUILD_WORKING_DIRECTORY");
  // The longest possible name has 247 letters and ".partial".
  for (const std::string& name :
       {std::string("new.json"), std::string(247, 'x')}) {
    const std::string path = PathOf(name);
    for (const char* json : {"{}", "[1]"}) {  // The second replaces the first.
      ASSERT_THAT(CheckJsonPath(path), IsOk());
      ASSERT_THAT(WriteJsonFile(path, json), IsOk());
      EXPECT_THAT(ReadFile(path), IsOkAndHolds(json));
    }
  }
}

TEST(JsonFileTest, WritesNothingWithoutAPath) {
  EXPECT_THAT(CheckJsonPath(""), IsOk());
  EXPECT_THAT(WriteJsonFile("", "{}"), IsOk());
}

TEST(JsonFileTest, RejectsWhatItCannotWrite) {
  unsetenv("BUILD_WORKING_DIRECTORY");
  const std::string folder = PathOf("folder");
  std::filesystem::create_directory(folder);
  const std::string loop = PathOf("loop");
  std::filesystem::create_symlink(loop, loop);
  for (const std::string& path :
       {folder, loop, PathOf(std::string(300, 'x')),
        PathOf(std::string(248, 'x')), PathOf("absent/x.json"),
        PathOf("loop/x.json"), std::string("/")}) {
    EXPECT_THAT(CheckJsonPath(path),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         StartsWith("--json: cannot write to ")))
        << path;
  }
}

}  // namespace

namespace report {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ValueTest, HoldsWhatItIsGiven) {
  EXPECT_TRUE(Value().is_null());
  EXPECT_TRUE(Value(std::optional<double>()).is_null());
  EXPECT_TRUE(TextOrNull("").is_null());
  EXPECT_EQ(TextOrNull("a"), "a");
  EXPECT_EQ(Value(std::optional<int>(3)), 3);
  EXPECT_EQ(Value(3u), 3);
  EXPECT_EQ(Value(3), 3u);
  EXPECT_FALSE(Value(3) == Value(3.0));
  EXPECT_FALSE(Value(-1) == Value(std::numeric_limits<uint64_t>::max()));
  EXPECT_FALSE(Value(true) == Value(1));
  EXPECT_FALSE(Value() == Value(false));
}

TEST(ValueTest, KeepsTheOrderOfItsMembers) {
  Value value = {{"z", 1}, {"a", Value{{"b", 2.5}}}};
  value.Add("list", std::vector<int>{4, 5});
  EXPECT_THAT(value.keys(), ElementsAre("z", "a", "list"));
  EXPECT_EQ(value["a"]["b"], 2.5);
  EXPECT_EQ(value["list"][1], 5);
  EXPECT_EQ(value["list"].size(), 2u);
  EXPECT_EQ(value.size(), 3u);
}

TEST(ValueTest, IsNullWhereThereIsNothing) {
  const Value value = {{"a", std::vector<int>{1}}};
  EXPECT_TRUE(value["b"].is_null());
  EXPECT_TRUE(value["b"]["c"][3].is_null());
  EXPECT_TRUE(value["a"][1].is_null());
  EXPECT_THAT(value["a"].keys(), IsEmpty());
}

TEST(ValueTest, GrowsFromNull) {
  Value list, object;
  list.Add(1);
  list.Add("two");
  object.Add("key", list);
  EXPECT_EQ(object["key"][1], "two");
}

TEST(BarTest, IsMetOnItsSide) {
  const Bar least = {
      .what = "it", .needed = 20, .unit = "times as fast", .value = 19.9};
  EXPECT_FALSE(least.Met());
  EXPECT_EQ(least.Goal(), "at least 20 times as fast");
  EXPECT_EQ(least.Outcome(), "19.9: NOT met");
  const Bar most = {.needed = 1.5, .at_most = true, .value = 1.5};
  EXPECT_TRUE(most.Met());
  EXPECT_EQ(most.Goal(), "at most 1.5");
  EXPECT_EQ(most.Outcome(), "1.50: met");
  const Bar percent = {
      .needed = 2, .at_most = true, .value = -0.349, .decimals = 1};
  EXPECT_EQ(percent.Outcome(), "-0.3: met");
  EXPECT_FALSE(Bar().Met());
  EXPECT_EQ(Bar().Outcome(), "not measured");
}

TEST(SignificantTest, HasAsManyDigits) {
  EXPECT_EQ(Significant(0, 3), "0.00");
  EXPECT_EQ(Significant(0.12, 4), "0.120");
  EXPECT_EQ(Significant(9.9994, 4), "9.999");
  EXPECT_EQ(Significant(9.9996, 4), "10.00");
  EXPECT_EQ(Significant(45.678, 4), "45.68");
  EXPECT_EQ(Significant(999.96, 4), "1000");
  EXPECT_EQ(Significant(123456, 4), "123456");
  EXPECT_EQ(Significant(7.5, 1), "8");
}

TEST(PercentAndCountedTest, RoundAndHaveAPlural) {
  EXPECT_EQ(Percent(0.8049), "80%");
  EXPECT_EQ(Percent(0.8049, 1), "80.5%");
  EXPECT_EQ(Percent(1.5), "150%");
  EXPECT_EQ(Counted(1, "rank"), "1 rank");
  EXPECT_EQ(Counted(0, "rank"), "0 ranks");
}

TEST(BytesTest, UsesTheLargestUnitThatIsExact) {
  EXPECT_EQ(Bytes(0), "0 B");
  EXPECT_EQ(Bytes(8), "8 B");
  EXPECT_EQ(Bytes(1023), "1023 B");
  EXPECT_EQ(Bytes(4096), "4 KiB");
  EXPECT_EQ(Bytes(4100), "4100 B");
  EXPECT_EQ(Bytes(9999999), "9999999 B");
  EXPECT_EQ(Bytes(10485761), "10.0 MiB");
  EXPECT_EQ(Bytes((1 << 30) - 1), "1.0 GiB");
  EXPECT_EQ(Bytes(64 << 20), "64 MiB");
  EXPECT_EQ(Bytes(int64_t{1} << 40), "1024 GiB");
}

TEST(OneLineTest, IsOneLineOfText) {
  EXPECT_EQ(OneLine(""), "");
  EXPECT_EQ(OneLine(" \n "), "");
  EXPECT_EQ(OneLine("\n a\t\n\r b \n"), "a b");
  EXPECT_EQ(OneLine("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82"),
            "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82");
}

TEST(OneLineTest, HasNoControlsAndNothingButUtf8) {
  const char* const kBad[] = {
      "\x1b",              // C0: an escape sequence.
      "\x7f",              // DEL.
      "\xc2\x9b",          // C1: the same escape sequence in one character.
      "\x9b",              // The byte alone, which is not UTF-8.
      "\xff",              //
      "\xc0\xaf",          // An overlong '/': two invalid bytes.
      "\xed\xa0\x80",      // A surrogate.
      "\xf4\x90\x80\x80",  // Past the last code point.
      "\xe2\x80\xae",      // Right to left from here.
      "\xe2\x80\xa8",      // A line separator.
      "\xe2\x80\x8b",      // An invisible space.
      "\xe2\x82",          // Cut off.
  };
  for (const std::string bad : kBad) {
    const std::string line = OneLine("a" + bad + "b");
    const std::string mark = "\xef\xbf\xbd";
    EXPECT_EQ(line.substr(0, 4), "a" + mark) << bad;
    EXPECT_EQ(line.back(), 'b');
    EXPECT_EQ(line.find(bad), std::string::npos);
    EXPECT_EQ(OneLine(line), line);
  }
}

TEST(OneLineTest, IsCutBetweenCharacters) {
  EXPECT_EQ(OneLine("abcd", 4), "abcd");
  EXPECT_EQ(OneLine("abcde", 4), "abcd ...");
  EXPECT_EQ(OneLine("abc\xc3\xa9", 4), "abc ...");
  EXPECT_EQ(OneLine("ab\xe2\x82\xac!", 4), "ab ...");
  EXPECT_EQ(OneLine("ab\xe2\x82\xac!", 5), "ab\xe2\x82\xac ...");
  EXPECT_EQ(OneLine(std::string(401, 'a')), std::string(400, 'a') + " ...");
}

TEST(MarkdownTextTest, LeavesPlainWordsAlone) {
  for (const char* plain :
       {"gradient_sums", "threads, CPU kernels", "Linux 6.1.0-18-amd64",
        "Intel(R) Xeon(R)", "12.2.0", "a = b; 50%", "the CPU's"}) {
    EXPECT_EQ(MarkdownText(plain), plain);
  }
}

TEST(MarkdownTextTest, PutsAllElseInCode) {
  for (const std::string text :
       {"<b>", "a&lt;b", "_a_", "a__b", "~~a~~", "@name", "#123", "*a*", "[a]",
        "a:tada:", "!", "\\", "http://a", "see www.a.b", "gh-12", "\"a\"",
        "\xc3\xa9"}) {
    EXPECT_EQ(MarkdownText(text), "`" + text + "`");
  }
  EXPECT_EQ(MarkdownText("a\n# b"), "`a # b`");
  EXPECT_EQ(MarkdownText("a`b"), "`` a`b ``");
  EXPECT_EQ(MarkdownText("``"), "``` `` ```");
}

TEST(MarkdownTextTest, CannotEndACellOfATable) {
  EXPECT_EQ(MarkdownText("a|b"), "`a|b`");
  EXPECT_EQ(MarkdownText("a|b", /*in_table=*/true), "`a\\|b`");
  EXPECT_EQ(MarkdownText("a\\|b", /*in_table=*/true),
            "`a\\\xc2\xa6"
            "b`");
  EXPECT_EQ(MarkdownCode("a", /*in_table=*/true), "`a`");
}

TEST(MarkdownTextTest, LeavesColonsOfSentencesAlone) {
  EXPECT_EQ(MarkdownText("Gloo: not available"), "Gloo: not available");
  EXPECT_EQ(MarkdownText("as follows:"), "as follows:");
}

TEST(HtmlTextTest, HasNoMarkup) {
  EXPECT_EQ(HtmlText("<b title='\"'>\n&</b>"),
            "&lt;b title=&#39;&quot;&#39;&gt; &amp;&lt;/b&gt;");
  EXPECT_EQ(HtmlText("\xff"), "\xef\xbf\xbd");
}

}  // namespace
}  // namespace report
}  // namespace lockstep
