// A rank in a thread, its driver in the test; answers as bytes.
#include "benchmarks/rank_service.h"

#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "benchmarks/turn_channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(DecodeAnswerTest, ReadsWhatEncodeWrote) {
  for (const std::string& text : {std::string(), std::string("\0a", 2)}) {
    EXPECT_THAT(DecodeAnswer(EncodeAnswer(text)), IsOkAndHolds(text));
  }
  EXPECT_THAT(DecodeAnswer(EncodeAnswer(absl::AbortedError("why"))),
              StatusIs(absl::StatusCode::kAborted, "why"));
}

TEST(DecodeAnswerTest, RefusesWhatIsCutShort) {
  for (const char* bytes : {"", "a", "abc"}) {
    EXPECT_THAT(DecodeAnswer(bytes),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("cut short")));
  }
}

TEST(ParseHelloTest, ReadsWhatSerializeWrote) {
  const absl::StatusOr<RankHello> hello = ParseHello(Serialize({3, 5}));
  ASSERT_THAT(hello, IsOk());
  EXPECT_EQ(hello->rank, 3);
  EXPECT_EQ(hello->world_size, 5);
  EXPECT_THAT(ParseHello("short"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("size")));
}

TEST(ServeMessagesTest, AnswersUntilAnAnswerFails) {
  absl::StatusOr<TurnListener> listener = TurnListener::Create();
  ASSERT_THAT(listener, IsOk());
  absl::Status status;
  std::thread rank([&] {
    status = ServeMessages(
        listener->name(), {0, 1},
        [](absl::string_view message) -> absl::StatusOr<std::string> {
          if (message == "13") return absl::AbortedError("unlucky");
          return absl::StrCat("<", message, ">");
        });
  });
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  absl::StatusOr<TurnChannel> driver = listener->Accept();
  ASSERT_THAT(driver, IsOk());
  EXPECT_THAT(ParseHello(*driver->Receive(deadline)), IsOk());
  ASSERT_THAT(driver->Send("12"), IsOk());
  EXPECT_THAT(DecodeAnswer(*driver->Receive(deadline)), IsOkAndHolds("<12>"));
  ASSERT_THAT(driver->Send("13"), IsOk());
  EXPECT_THAT(DecodeAnswer(*driver->Receive(deadline)),
              StatusIs(absl::StatusCode::kAborted, "unlucky"));
  rank.join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, "unlucky"));
}

}  // namespace
}  // namespace lockstep
