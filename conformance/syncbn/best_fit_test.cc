// A mistake explains numbers that are wrong, all of them, and no others.
#include "conformance/syncbn/best_fit.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr double kBound = 0.01;

// 1, 2, 3, ..., each within kBound.
Bounded Wanted(int64_t size) {
  Bounded want(size);
  for (size_t i = 0; i < want.value.size(); ++i) {
    want.value[i] = static_cast<double>(i) + 1;
    want.bound[i] = kBound;
  }
  return want;
}

class BestFitTest : public testing::Test {
 protected:
  Mistake Times(const std::string& name, double factor) const {
    return {name, [this, factor](size_t i, size_t) {
              return factor * want_.value[i];
            }};
  }
  std::string Fit(const std::vector<double>& got,
                  const std::vector<Mistake>& mistakes) const {
    return BestFit(got, want_, Precision(), 1, 1, mistakes);
  }
  std::vector<double> Scaled(double factor) const {
    std::vector<double> got = want_.value;
    for (double& value : got) value *= factor;
    return got;
  }

  const Bounded want_ = Wanted(6);
};

TEST_F(BestFitTest, NamesTheClosestMistake) {
  const std::vector<Mistake> mistakes = {
      Times("halved", 0.5), Times("a bit more", 0.503), Times("doubled", 2)};
  EXPECT_EQ(Fit(Scaled(0.5), mistakes), ", as if halved");
  EXPECT_EQ(Fit(Scaled(0.503), mistakes), ", as if a bit more");
  EXPECT_EQ(Fit(Scaled(2), mistakes), ", as if doubled");
  EXPECT_EQ(Fit(Scaled(3), mistakes), "");
}

// What is two bounds off for any reason.
TEST_F(BestFitTest, DoesNotNameWhatWouldNotBeRejected) {
  std::vector<double> got = want_.value;
  got[2] += 2 * kBound;
  EXPECT_EQ(Fit(got, {Times("right, nearly", 1 + 1e-5)}), "");
  EXPECT_EQ(Fit(got, {Times("within the bounds", 1 + 0.1 * kBound)}), "");
}

TEST_F(BestFitTest, DoesNotNameWhatIsNoCloser) {
  std::vector<double> got = want_.value;
  got[2] += 2 * kBound;
  const Mistake elsewhere = {"another is off", [&](size_t i, size_t) {
                               return want_.value[i] +
                                      (i == 4 ? 1.5 : 0) * kBound;
                             }};
  EXPECT_EQ(Fit(got, {elsewhere}), "");
  const Mistake there = {"it is off", [&](size_t i, size_t) {
                           return want_.value[i] + (i == 2 ? 1.5 : 0) * kBound;
                         }};
  EXPECT_EQ(Fit(got, {elsewhere, there}), ", as if it is off");
}

TEST_F(BestFitTest, AsksForEveryElement) {
  for (size_t i = 0; i < 6; ++i) {
    std::vector<double> got = Scaled(0.5);
    got[i] = 7;
    EXPECT_EQ(Fit(got, {Times("halved", 0.5)}), "") << i;
    got[i] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(Fit(got, {Times("halved", 0.5), Times("NaN", NAN)}), "") << i;
  }
}

TEST_F(BestFitTest, StretchesBounds) {
  std::vector<double> got = Scaled(2);
  got[0] += 6 * kBound;
  Mistake doubled = Times("doubled", 2);
  EXPECT_EQ(Fit(got, {doubled}), "");
  doubled.stretch = [](size_t) { return 2.0; };
  EXPECT_EQ(Fit(got, {doubled}), ", as if doubled");
}

// Of 66 channels with 3 values.
class FirstChannelsTest : public testing::Test {
 protected:
  std::string Of(const std::vector<double>& got) const {
    return FirstChannelsOnly(got, want_, 3, 66, 65);
  }
  const Bounded want_ = Wanted(66 * 3);
};

TEST_F(FirstChannelsTest, NamesWhatIsNotComputed) {
  std::vector<double> got = want_.value;
  for (size_t i = 64 * 3; i < got.size(); ++i) got[i] = 0;
  EXPECT_EQ(Of(got), ", as if only the first 64 channels were computed");
  EXPECT_EQ(FirstChannelsOnly(got, want_, 3, 66, 63), "");
  got[5] = NAN;
  EXPECT_EQ(Of(got), "");
}

TEST_F(FirstChannelsTest, DoesNotNameItForAFewElements) {
  std::vector<double> got = want_.value;
  got.back() = 0;
  EXPECT_EQ(Of(got), "");
  for (size_t i = 65 * 3; i < got.size(); ++i) got[i] = 0;
  EXPECT_EQ(Of(got), "");  // Channel 64 is right.
}

TEST(NotWrittenTest, AsksForTheBytesOfEveryWrongElement) {
  const Bounded want = Wanted(4);
  std::vector<double> got = want.value;
  got[1] = got[3] = NAN;
  EXPECT_EQ(NotWritten(got, want, {false, true, false, true}),
            ", as if it had not been written, 2 of 4");
  // A NaN that was computed.
  EXPECT_EQ(NotWritten(got, want, {false, true, false, false}), "");
  got[0] = 7;
  EXPECT_EQ(NotWritten(got, want, {false, true, false, true}), "");
}

}  // namespace
}  // namespace lockstep
