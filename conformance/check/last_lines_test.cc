// Output as programs really write it.
#include "conformance/check/last_lines.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(LastLinesTest, TakesTheLastOnesInOrder) {
  const std::string output = "one\n\n two \nthree\n  \n";
  EXPECT_THAT(LastLines(output, 0), IsEmpty());
  EXPECT_THAT(LastLines(output, 1), ElementsAre("three"));
  EXPECT_THAT(LastLines(output, 2), ElementsAre("two", "three"));
  EXPECT_THAT(LastLines(output, 9), ElementsAre("one", "two", "three"));
  EXPECT_THAT(LastLines("unfinished", 2), ElementsAre("unfinished"));
  EXPECT_THAT(LastLines("", 2), IsEmpty());
  EXPECT_THAT(LastLines("\n", 2), IsEmpty());
  EXPECT_THAT(LastLines("10%\r20%\r\ndone", 2), ElementsAre("20%", "done"));
}

TEST(LastLinesTest, ShowsNothingThatATerminalWouldObey) {
  EXPECT_THAT(LastLines("\x1b[1;31mred\x1b[0m\tend", 2),
              ElementsAre("red end"));
  EXPECT_THAT(LastLines(std::string("a\0b\x07\xc3\xa9\x7f", 7), 2),
              ElementsAre("a?b????"));
  EXPECT_THAT(LastLines("a\x1b", 2), ElementsAre("a"));
  EXPECT_THAT(LastLines("a\x1b[", 2), ElementsAre("a"));
  EXPECT_THAT(LastLines("a\x1b[31", 2), ElementsAre("a"));
  EXPECT_THAT(LastLines("a\x1b"
                        "cb",
                        2),
              ElementsAre("acb"));
}

TEST(LastLinesTest, CutsLongLines) {
  const std::string longest(kMostLineBytes, 'x');
  EXPECT_THAT(LastLines(longest, 1), ElementsAre(longest));
  const std::vector<std::string> lines = LastLines(longest + "y", 1);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], std::string(kMostLineBytes - 3, 'x') + "...");
}

}  // namespace
}  // namespace lockstep
