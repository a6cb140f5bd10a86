#include "collectives/launch/line_prefixer.h"

#include <cstddef>
#include <string>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(LinePrefixerTest, PrefixesCompleteLines) {
  LinePrefixer prefixer("[3] ");
  EXPECT_EQ(prefixer.Add("one\ntwo\n"), "[3] one\n[3] two\n");
  EXPECT_EQ(prefixer.Add("\n"), "[3] \n");
  EXPECT_EQ(prefixer.Finish(), "");
}

TEST(LinePrefixerTest, HoldsPartialLineBack) {
  LinePrefixer prefixer("[0] ");
  EXPECT_EQ(prefixer.Add("par"), "");
  EXPECT_EQ(prefixer.Add("tial"), "");
  EXPECT_EQ(prefixer.Add("\nnext"), "[0] partial\n");
  EXPECT_EQ(prefixer.Finish(), "[0] next\n");
  EXPECT_EQ(prefixer.Finish(), "");
}

TEST(LinePrefixerTest, IsIndependentOfSplits) {
  const std::string text = "a\n\nbc\nd";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      LinePrefixer prefixer("> ");
      std::string out = prefixer.Add(text.substr(0, first));
      out += prefixer.Add(text.substr(first, second - first));
      out += prefixer.Add(text.substr(second));
      out += prefixer.Finish();
      EXPECT_EQ(out, "> a\n> \n> bc\n> d\n") << first << " " << second;
    }
  }
}

TEST(LinePrefixerTest, BreaksEndlessLine) {
  constexpr size_t kMax = LinePrefixer::kMaxLineBytes;
  LinePrefixer prefixer("> ");
  EXPECT_EQ(prefixer.Add(std::string(kMax, 'x')), "");
  EXPECT_EQ(prefixer.Add("\n"), "> " + std::string(kMax, 'x') + "\n");
  EXPECT_EQ(
      prefixer.Add(std::string(2 * kMax + 1, 'y')),
      "> " + std::string(kMax, 'y') + "\n> " + std::string(kMax, 'y') + "\n");
  EXPECT_EQ(prefixer.Finish(), "> y\n");
}

}  // namespace
}  // namespace lockstep
