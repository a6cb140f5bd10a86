// Lines of given lengths.
#include "report/wrap_text.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(WrapTextTest, BreaksBetweenWordsOnly) {
  EXPECT_EQ(WrapText("", 5), "\n");
  EXPECT_EQ(WrapText("ab cd", 5), "ab cd\n");
  EXPECT_EQ(WrapText("ab cde", 5), "ab\ncde\n");
  EXPECT_EQ(WrapText("abcdefg hi  jk l", 5), "abcdefg\nhi jk\nl\n");
}

}  // namespace
}  // namespace lockstep
