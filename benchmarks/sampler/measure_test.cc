// Flags, the order of draws, and PyTorch as it is and as it fails.
#include "benchmarks/sampler/measure.h"

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/fake_python.h"
#include "benchmarks/sampler/draw.h"
#include "benchmarks/sampler/plan.h"
#include "benchmarks/sampler/torch_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseSizesTest, SortsThemAndTakesEachOnce) {
  EXPECT_THAT(ParseSizes("11"), IsOkAndHolds(ElementsAre(11)));
  EXPECT_THAT(ParseSizes("60000,1,2000000000,60000"),
              IsOkAndHolds(ElementsAre(1, 60000, 2000000000)));
}

TEST(ParseSizesTest, NamesTheSizeThatIsWrong) {
  for (const char* text : {"", "0", "-1", "2000000001", "1e6", "1,,2", "1,two",
                           "99999999999999999999", "1.5"}) {
    EXPECT_THAT(ParseSizes(text),
                StatusIs(kInvalid, StartsWith("--sizes has '")))
        << text;
  }
  EXPECT_THAT(ParseSizes("1,two"), StatusIs(kInvalid, HasSubstr("'two'")));
}

TEST(ParseSamplerPeersTest, KnowsOne) {
  EXPECT_THAT(ParseSamplerPeers("torch"), IsOkAndHolds(true));
  EXPECT_THAT(ParseSamplerPeers(""), IsOkAndHolds(false));
  EXPECT_THAT(ParseSamplerPeers("torch,mpi"),
              StatusIs(kInvalid, StartsWith("--peers is 'torch,mpi'")));
}

TEST(ValidateTest, NamesTheFlagThatIsWrong) {
  EXPECT_THAT(Validate(SamplerSettings()), IsOk());
  SamplerSettings settings;
  settings.rounds = -1;
  EXPECT_THAT(Validate(settings),
              StatusIs(kInvalid, StartsWith("--rounds is -1, must be")));
  settings = SamplerSettings();
  settings.seconds = 0;
  EXPECT_THAT(Validate(settings),
              StatusIs(kInvalid, StartsWith("--seconds: 0 is not")));
  settings = SamplerSettings();
  settings.timeout = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Validate(settings),
              StatusIs(kInvalid, StartsWith("--timeout: nan is not")));
}

// 100 million samples must fit where the bars are measured.
TEST(MemoryTest, GrowsWithTheSize) {
  EXPECT_GT(DrawMemory(100'000'000), 500'000'000);
  EXPECT_LT(DrawMemory(100'000'000), 700'000'000);
  EXPECT_GT(PyTorchMemory(100'000'000), 4'800'000'000);
  EXPECT_LT(PyTorchMemory(100'000'000), 7'000'000'000);
}

// The order of draws, with draws and a clock that are made up.

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

class MeasureEpochTest : public testing::Test {
 protected:
  MeasureEpochTest() { settings_.rounds = 3; }

  absl::StatusOr<MeasuredEpoch> Measure() {
    return MeasureEpoch(
        settings_, 1000,
        [this](DrawSubject subject, int64_t size) {
          EXPECT_EQ(size, 1000);
          return Draw(subject);
        },
        [this] { return now_; }, subjects_, missing_);
  }

  absl::StatusOr<DrawResult> Draw(DrawSubject subject) {
    turns_.push_back(Name(subject));
    now_ += seconds_;
    const int64_t turn = ++turns_of_[subject];
    if (subject == failing_ && turn == failing_turn_) {
      return absl::UnavailableError("it broke");
    }
    const bool other = subject == other_ && turn >= other_turn_;
    return DrawResult{
        .seconds = seconds_, .count = 125, .checksum = other ? 8u : 7u};
  }

  SamplerSettings settings_;
  std::vector<DrawSubject> subjects_ = {
      DrawSubject::kTorch, DrawSubject::kPyTorch, DrawSubject::kTable};
  std::string missing_;
  double now_ = 0;
  double seconds_ = 0.5;                        // Of each draw.
  DrawSubject failing_ = DrawSubject::kPaddle;  // Which is not drawn here.
  int64_t failing_turn_ = 2;
  DrawSubject other_ = DrawSubject::kPaddle;
  int64_t other_turn_ = 1;
  std::vector<std::string> turns_;
  std::map<DrawSubject, int64_t> turns_of_;
};

TEST_F(MeasureEpochTest, GivesEachATurnInEveryRound) {
  const absl::StatusOr<MeasuredEpoch> measured = Measure();
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_, ElementsAre("torch", "PyTorch", "table",  //
                                  "PyTorch", "torch", "table",  //
                                  "PyTorch", "table", "torch"));
  EXPECT_EQ(measured->size, 1000);
  ASSERT_THAT(measured->draws, SizeIs(3));
  for (const MeasuredDraws& draws : measured->draws) {
    EXPECT_THAT(draws.seconds, ElementsAre(0.5, 0.5, 0.5));
    EXPECT_EQ(draws.count, 125);
    EXPECT_EQ(draws.checksum, 7u);
  }
  EXPECT_THAT(missing_, IsEmpty());
}

TEST_F(MeasureEpochTest, TakesAsManyRoundsAsTheTimeAllows) {
  settings_.rounds = 0;
  settings_.seconds = 10;
  const std::vector<std::pair<double, size_t>> rounds_of_seconds = {
      {100, 2}, {1.2, 2}, {1.1, 3}, {0.5, 6}, {0.001, 15}};
  for (const auto& [seconds, rounds] : rounds_of_seconds) {
    seconds_ = seconds;
    now_ = 0;
    const absl::StatusOr<MeasuredEpoch> measured = Measure();
    ASSERT_THAT(measured, IsOk());
    EXPECT_THAT(measured->draws[0].seconds, SizeIs(rounds)) << seconds;
  }
}

// What earlier sizes took is gone.
TEST_F(MeasureEpochTest, CountsFromTheStartOfTheCommand) {
  settings_.rounds = 0;
  settings_.seconds = 10;
  now_ = 9;
  const absl::StatusOr<MeasuredEpoch> measured = Measure();
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(measured->draws[0].seconds, SizeIs(2));
}

TEST_F(MeasureEpochTest, GoesOnWithoutPyTorch) {
  failing_ = DrawSubject::kPyTorch;
  const absl::StatusOr<MeasuredEpoch> measured = Measure();
  ASSERT_THAT(measured, IsOk());
  EXPECT_EQ(missing_, "at 1000 samples: it broke");
  EXPECT_THAT(subjects_, ElementsAre(DrawSubject::kTorch, DrawSubject::kTable));
  ASSERT_THAT(measured->draws, SizeIs(2));
  for (const MeasuredDraws& draws : measured->draws) {
    EXPECT_THAT(draws.seconds, SizeIs(3));
  }
}

TEST_F(MeasureEpochTest, FailsWithOneOfOurs) {
  failing_ = DrawSubject::kTorch;
  EXPECT_THAT(Measure(),
              StatusIs(absl::StatusCode::kUnavailable, "torch: it broke"));
}

TEST_F(MeasureEpochTest, ComparesWithPyTorch) {
  other_ = DrawSubject::kPyTorch;
  EXPECT_THAT(Measure(), StatusIs(kDataLoss,
                                  "torch: of 1000 samples it draws 125 indices "
                                  "with CRC-32 7, PyTorch 125 with 8"));
  EXPECT_THAT(turns_, SizeIs(2));
}

TEST_F(MeasureEpochTest, ComparesWithTheRoundBefore) {
  other_ = DrawSubject::kTorch;
  other_turn_ = 2;
  EXPECT_THAT(Measure(),
              StatusIs(kDataLoss, HasSubstr("drawn again, has other indices")));
}

// Programs in the place of Python: right, wrong, dead and silent ones.

using ::testing::AllOf;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

absl::StatusOr<SamplerPeer> Start(const std::string& script,
                                  double timeout = 60) {
  SamplerSettings settings;
  settings.pythons = {MakePython(script)};
  settings.timeout = timeout;
  return SamplerPeer::Start(settings);
}

constexpr char kReady[] = "echo lockstep: ready 2.1.0; ";

TEST(SamplerPeerTest, SaysWhatToDraw) {
  absl::StatusOr<SamplerPeer> peer = Start(absl::StrCat(
      kReady,
      "while read n p r s e; do echo lockstep: drew 0.$p$r $n $s$e; done"));
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->name(), HasSubstr("PyTorch 2.1.0 ("));
  for (const int64_t size : {1, 60000}) {
    const absl::StatusOr<DrawResult> result = peer->Draw(size);
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->seconds, 0.83);
    EXPECT_EQ(result->count, size);
    EXPECT_EQ(result->checksum, 1u);
  }
}

TEST(SamplerPeerTest, ReportsGarbage) {
  absl::StatusOr<SamplerPeer> peer =
      Start(absl::StrCat(kReady, "read line; echo lockstep: drew x; cat"));
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->Draw(11), StatusIs(absl::StatusCode::kInternal,
                                       HasSubstr("not understood: drew x")));
}

TEST(SamplerPeerTest, ReportsOneThatDies) {
  absl::StatusOr<SamplerPeer> peer =
      Start(absl::StrCat(kReady, "read line; echo MemoryError; exit 1"));
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->Draw(11),
              StatusIs(kUnavailable, HasSubstr("it said: MemoryError")));
}

TEST(SamplerPeerTest, GivesUpOneThatHangs) {
  EXPECT_THAT(Start("sleep 1000", /*timeout=*/0.05),
              StatusIs(kUnavailable, HasSubstr("did not answer in time")));
}

// From there on it would draw another order: no fault of ours.
TEST(SamplerPeerTest, LeavesOutWhatItDrawsOtherwise) {
  absl::StatusOr<SamplerPeer> peer = Start(absl::StrCat(kReady, "cat"));
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->Draw(1'000'000'000),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("before 2.6 it draws another order")));
}

TEST(SamplerPeerTest, LeavesOutWhatDoesNotFit) {
  absl::StatusOr<SamplerPeer> peer =
      Start("echo lockstep: ready 2.6.0+cpu; cat");
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->Draw(int64_t{1} << 50),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("MiB for this size")));
}

TEST(DrawsWideTest, ReadsTheVersion) {
  for (const char* version : {"2.6.0", "2.10.1+cu124", "3.0", "2.6.0a0"}) {
    EXPECT_TRUE(DrawsWide(version)) << version;
  }
  for (const char* version : {"2.5.1", "1.13.0a0", "", "2", "x.y", "2.x"}) {
    EXPECT_FALSE(DrawsWide(version)) << version;
  }
}

TEST(ParseDrawAnswerTest, TakesNothingElse) {
  EXPECT_THAT(ParseDrawAnswer("drew 1e-3 7500 4294967295"), IsOk());
  for (const char* answer :
       {"", "drew", "drew 1 2", "drew 1 2 3 4", "took 1 2 3", "drew 0 2 3",
        "drew nan 2 3", "drew inf 2 3", "drew -1 2 3", "drew 1 0 3",
        "drew 1 2.5 3", "drew 1 2 4294967296", "drew 1 2 -3", "drew 1 2 x"}) {
    EXPECT_THAT(
        ParseDrawAnswer(answer),
        StatusIs(absl::StatusCode::kInternal, HasSubstr("is not understood")))
        << answer;
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
