// Programs in the place of Python: right, wrong, dead and silent ones.
#include "benchmarks/sampler_peer.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "benchmarks/fake_python.h"
#include "benchmarks/sampler_draw.h"
#include "benchmarks/sampler_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
}  // namespace lockstep
