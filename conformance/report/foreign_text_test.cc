// What foreign text cannot do to a line, a table and a page of GitHub's.
#include "conformance/report/foreign_text.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

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
      "\x9b",              // Its byte alone, which is no UTF-8.
      "\xff",              //
      "\xc0\xaf",          // A longer form of '/': two bytes that are nothing.
      "\xed\xa0\x80",      // A surrogate.
      "\xf4\x90\x80\x80",  // Past the last code point.
      "\xe2\x80\xae",      // Right to left from here.
      "\xe2\x80\xa8",      // A line separator.
      "\xe2\x80\x8b",      // A space that cannot be seen.
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

}  // namespace
}  // namespace lockstep
