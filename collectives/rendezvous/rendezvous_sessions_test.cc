// Tests of the TCP rendezvous as bytes in and bytes out, without sockets: its
// frames, the server and the ranks.
#include "collectives/rendezvous/rendezvous_sessions.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/protocol.h"
#include "collectives/rendezvous/rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr FrameKinds kAll(FrameKind::kGreeting, FrameKind::kJoin,
                          FrameKind::kWelcome, FrameKind::kDenied,
                          FrameKind::kPublish, FrameKind::kResult,
                          FrameKind::kFailure, FrameKind::kGiveUp,
                          FrameKind::kLeave);

std::vector<Frame> OneOfEachKind() {
  return {{FrameKind::kGreeting, 0, 0, std::string(kNonceBytes, 'n')},
          {FrameKind::kJoin, 2, 3, std::string(kJoinBytes, 'j')},
          {FrameKind::kWelcome, 0, 77, std::string(kProofBytes, 'p')},
          {FrameKind::kDenied, 0, 0, ""},
          {FrameKind::kPublish, 0, 1, "a blob"},
          {FrameKind::kResult, 2, 1, std::string("\0\xff\n", 3)},
          {FrameKind::kFailure, 0, 14, "rank 1 died"},
          {FrameKind::kGiveUp, 0, 60000, ""},
          {FrameKind::kLeave, 0, 0, ""}};
}

// Returns all frames of `bytes`, given to the reader in pieces of one size.
// Stops at an error.
std::vector<Frame> ReadInPieces(absl::string_view bytes, size_t piece) {
  FrameReader reader(kAll);
  std::vector<Frame> frames;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.Append(bytes.substr(at, piece));
    while (true) {
      const absl::StatusOr<std::optional<Frame>> frame = reader.Next();
      EXPECT_THAT(frame, IsOk());
      if (!frame.ok() || !frame->has_value()) break;
      frames.push_back(**frame);
    }
  }
  return frames;
}

TEST(FrameTest, HeaderIsAsDocumented) {
  EXPECT_EQ(EncodeFrame({FrameKind::kResult, 0x01020304, 0x0a0b0c0d, "blob"}),
            std::string("LSRT\x01\x06\0\0\x04\x03\x02\x01\x0d\x0c\x0b\x0a"
                        "\x04\0\0\0blob",
                        24));
}

TEST(FrameTest, EveryKindComesBackFromPiecesOfEverySize) {
  std::string bytes;
  for (const Frame& frame : OneOfEachKind()) bytes += EncodeFrame(frame);
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    EXPECT_EQ(ReadInPieces(bytes, piece), OneOfEachKind()) << piece;
  }
}

// A wrong byte is rejected as soon as it arrives, and not before.
TEST(FrameTest, RefusesAnythingElseAtItsFirstByte) {
  const std::string frame = EncodeFrame({FrameKind::kPublish, 0, 1, "blob"});
  for (const size_t at : {0, 1, 2, 3, 4, 5, 6, 7}) {
    for (int value = 0; value < 256; ++value) {
      std::string bytes = frame;
      bytes[at] = static_cast<char>(value);
      if (bytes == frame) continue;
      FrameReader reader{FrameKinds(FrameKind::kPublish)};
      reader.Append(bytes.substr(0, at));
      ASSERT_THAT(reader.Next(), IsOk());
      reader.Append(bytes.substr(at));
      const absl::Status error = reader.Next().status();
      if (at == 4) {
        ASSERT_EQ(error,
                  absl::FailedPreconditionError(absl::StrCat(
                      "version ", value, " of the protocol, and not 1")));
      } else {
        ASSERT_EQ(error.code(), absl::StatusCode::kDataLoss) << at << value;
      }
      ASSERT_EQ(reader.Next().status(), error);  // The error persists.
    }
  }
}

TEST(FrameTest, RefusesASizeThatTheKindDoesNotHaveByItsHeader) {
  for (const Frame& frame : OneOfEachKind()) {
    const bool any_size = frame.kind == FrameKind::kPublish ||
                          frame.kind == FrameKind::kResult ||
                          frame.kind == FrameKind::kFailure;
    const size_t max = frame.kind == FrameKind::kFailure ? kMaxFailureBytes
                       : any_size                        ? kMaxBlobBytes
                                                         : frame.payload.size();
    std::vector<uint32_t> wrong = {static_cast<uint32_t>(max + 1), 0x80000000,
                                   0xffffffff};
    if (!any_size && max > 0) wrong.push_back(static_cast<uint32_t>(max - 1));
    for (const uint32_t size : wrong) {
      std::string header = EncodeFrame(frame).substr(0, kFrameHeaderBytes);
      for (size_t i = 0; i < 4; ++i) {
        header[16 + i] = static_cast<char>(size >> 8 * i & 0xff);
      }
      FrameReader reader(kAll);
      reader.Append(header);
      EXPECT_THAT(reader.Next().status(),
                  StatusIs(absl::StatusCode::kDataLoss,
                           HasSubstr(absl::StrCat("with ", size, " bytes"))));
    }
    Frame largest = frame;
    largest.payload.resize(max, 'x');
    EXPECT_THAT(ReadInPieces(EncodeFrame(largest), 1000),
                testing::ElementsAre(largest));
  }
}

TEST(FrameTest, FailuresComeBackOnOneLine) {
  const absl::Status failure = absl::UnavailableError("rank 1\ndied");
  EXPECT_EQ(DecodeFailure(FailureFrame(failure)),
            absl::UnavailableError("rank 1?died"));
  const Frame long_one =
      FailureFrame(absl::UnavailableError(std::string(100000, 'x')));
  EXPECT_EQ(long_one.payload.size(), kMaxFailureBytes);
  for (const uint32_t code : {0u, 17u, 0xffffffffu}) {
    EXPECT_EQ(DecodeFailure({FrameKind::kFailure, 0, code, "what"}),
              absl::UnknownError("what"));
  }
}

using Blobs = absl::StatusOr<std::vector<std::string>>;

constexpr char kToken[] = "the token";

// Returns a nonce that differs from those of the last 255 strangers.
Nonce NextNonce() {
  static unsigned char count = 0;
  return {++count};
}

uint32_t PidOf(int rank) { return 100 + static_cast<uint32_t>(rank); }

// A server and the ranks that connected to it. Bytes move only in Move().
class Meeting {
 public:
  explicit Meeting(int world_size, size_t piece = size_t{1} << 20)
      : world_size_(world_size), piece_(piece), server_(EndOf(0, kToken)) {
    ends_.push_back({server_.AddRankZero(),
                     RendezvousClient::ForRankZero(EndOf(0, kToken))});
  }

  RendezvousEnd EndOf(int rank, absl::string_view token) const {
    return {"rendezvous",
            {rank, static_cast<uint32_t>(world_size_), PidOf(rank)},
            std::string(token)};
  }

  // Adds an end for a rank that may claim anything. Returns the end's index.
  size_t Add(RendezvousEnd end) {
    ends_.push_back({server_.AddStranger(absl::ZeroDuration(), NextNonce()),
                     RendezvousClient(std::move(end), Nonce{1})});
    return ends_.size() - 1;
  }
  size_t Add(int rank) { return Add(EndOf(rank, kToken)); }

  RendezvousServer& server() { return server_; }
  RendezvousClient& client(size_t i) { return ends_[i].client; }
  RendezvousServer::SessionId id(size_t i) const { return ends_[i].id; }

  // Moves bytes until no end has any to send.
  void Move() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (End& end : ends_) moved |= !end.ended && MoveOne(end);
    }
  }

  void Disconnect(size_t i) {
    server_.Disconnect(ends_[i].id);
    ends_[i].ended = true;
  }

  Blobs Outcome(size_t i) {
    const auto& outcome = ends_[i].client.outcome();
    return outcome.has_value() ? *outcome : absl::UnknownError("none yet");
  }

 private:
  struct End {
    RendezvousServer::SessionId id;
    RendezvousClient client;
    bool ended = false;
  };

  // Moves one piece each way; returns false if there is none.
  bool MoveOne(End& end) {
    const std::string down(server_.Output(end.id).substr(0, piece_));
    if (!down.empty()) server_.Sent(end.id, down.size());
    end.client.Receive(down);
    if (server_.ShouldClose(end.id)) {
      server_.Disconnect(end.id);
      end.ended = true;
      return true;
    }
    const std::string up(end.client.Output().substr(0, piece_));
    end.client.Sent(up.size());
    server_.Receive(end.id, up);
    return !down.empty() || !up.empty();
  }

  int world_size_;
  size_t piece_;  // The most bytes that move at once.
  RendezvousServer server_;
  std::vector<End> ends_;
};

// Meets in pieces of some size; the highest rank joins first.
void MeetInEveryRound(int world_size, size_t piece) {
  SCOPED_TRACE(absl::StrCat(world_size, " ranks, pieces of ", piece));
  Meeting meeting(world_size, piece);
  for (int rank = world_size - 1; rank > 0; --rank) meeting.Add(rank);
  for (uint32_t round = 1; round <= 3; ++round) {
    std::vector<std::string> want;
    for (int rank = 0; rank < world_size; ++rank) {
      want.push_back(absl::StrCat(rank, " in ", round));
    }
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_FALSE(meeting.Outcome(0).ok() && round == 1);
      meeting.client(i).Publish(round, want[(want.size() - i) % want.size()]);
      meeting.Move();
    }
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_THAT(meeting.Outcome(i), IsOkAndHolds(want));
    }
  }
}

TEST(RendezvousServerTest, RanksMeetInEveryRound) {
  for (const int world_size : {1, 2, 3, 5, 16}) {
    MeetInEveryRound(world_size, size_t{1} << 20);
  }
  for (size_t piece = 1; piece <= 200; ++piece) MeetInEveryRound(3, piece);
}

// Returns the bytes that rank 1 of 2 sends to join.
std::string JoinOfRankOne(Meeting& meeting, RendezvousServer::SessionId id) {
  Frame greeting;
  greeting.payload =
      std::string(meeting.server().Output(id).substr(kFrameHeaderBytes));
  return EncodeFrame(
      JoinFrame(kToken, NonceOfGreeting(greeting), Nonce{2}, {1, 2, PidOf(1)}));
}

// A connection is cut after any byte. Before the join is complete, this has no
// effect, so that another rank 1 can join. Afterwards rank 1 has died.
TEST(RendezvousServerTest, RankThatVanishesAfterAnyByte) {
  const size_t join_bytes = kFrameHeaderBytes + kJoinBytes;
  for (size_t size = 0; size <= join_bytes + kFrameHeaderBytes; ++size) {
    Meeting meeting(2);
    meeting.client(0).Publish(1, "zero");
    const size_t one = meeting.Add(1);
    const std::string sent = JoinOfRankOne(meeting, meeting.id(one)) +
                             EncodeFrame({FrameKind::kPublish, 0, 1, "one"});
    meeting.server().Receive(meeting.id(one), sent.substr(0, size));
    meeting.Disconnect(one);
    meeting.Move();
    if (size < join_bytes) {
      meeting.client(meeting.Add(1)).Publish(1, "one");
      meeting.Move();
      ASSERT_THAT(meeting.Outcome(0), IsOkAndHolds(ElementsAre("zero", "one")));
    } else {
      ASSERT_THAT(meeting.Outcome(0),
                  StatusIs(absl::StatusCode::kUnavailable,
                           "rendezvous: rank 1 (pid 101) died"));
    }
  }
}

// No rank is let in, and the run goes on.
TEST(RendezvousServerTest, RequestToJoinWithAnyBitChanged) {
  for (size_t at = 0; at < kFrameHeaderBytes + kJoinBytes; ++at) {
    Meeting meeting(2);
    meeting.client(0).Publish(1, "zero");
    meeting.Move();
    for (int change = 1; change < 256; change *= 2) {
      const auto id =
          meeting.server().AddStranger(absl::ZeroDuration(), NextNonce());
      std::string sent = JoinOfRankOne(meeting, id);
      meeting.server().Sent(id, meeting.server().Output(id).size());
      sent[at] = static_cast<char>(sent[at] ^ change);
      meeting.server().Receive(id, sent);
      const absl::string_view answer = meeting.server().Output(id);
      // The answer is a denial (kind 4), or nothing.
      ASSERT_TRUE(answer.empty() || answer[5] == 4) << at << " " << change;
      meeting.server().Disconnect(id);
      ASSERT_TRUE(meeting.server().Output(meeting.id(0)).empty());
    }
    meeting.client(meeting.Add(1)).Publish(1, "one");
    meeting.Move();
    ASSERT_THAT(meeting.Outcome(0), IsOkAndHolds(ElementsAre("zero", "one")));
  }
}

// Checks the answer to a rank that joins after rank 0 and rank 1 of 3.
TEST(RendezvousServerTest, RefusesRanksAndGoesOn) {
  Meeting meeting(3);
  meeting.client(meeting.Add(1)).Publish(1, "first");
  meeting.Move();
  const auto expect = [&](int rank, const char* token, absl::StatusCode code,
                          const std::string& what) {
    const size_t other = meeting.Add(meeting.EndOf(rank, token));
    meeting.client(other).Publish(1, "second");
    meeting.Move();
    EXPECT_THAT(meeting.Outcome(other),
                StatusIs(code, absl::StrCat("rendezvous: rank ", rank, what)));
    EXPECT_EQ(meeting.client(other).joined(), std::string(token) == kToken);
  };
  expect(2, "another token", absl::StatusCode::kUnauthenticated,
         " was refused: its token is not rank 0's");
  for (const int rank : {0, 1}) {
    expect(rank, kToken, absl::StatusCode::kAlreadyExists,
           absl::StrCat(" (pid ", PidOf(rank), ") has joined already"));
  }
  for (const int rank : {-1, 3, 1 << 30}) {
    expect(rank, kToken, absl::StatusCode::kInvalidArgument,
           " is outside [0, 3)");
  }
  meeting.client(0).Publish(1, "zero");
  meeting.client(meeting.Add(2)).Publish(1, "two");
  meeting.Move();
  EXPECT_THAT(meeting.Outcome(1),
              IsOkAndHolds(ElementsAre("zero", "first", "two")));
}

TEST(RendezvousServerTest, RankOfAnotherWorldSizeEndsTheRun) {
  Meeting meeting(3);
  meeting.client(0).Publish(1, "");
  const size_t other =
      meeting.Add(RendezvousEnd{"rendezvous", {1, 4, PidOf(1)}, kToken});
  meeting.client(other).Publish(1, "");
  meeting.Move();
  for (const size_t i : {size_t{0}, other}) {
    EXPECT_THAT(meeting.Outcome(i),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "rendezvous: ranks disagree on the world size: rank 1 "
                         "(pid 101) says 4, rank 0 (pid 100) says 3"));
  }
}

TEST(RendezvousServerTest, FirstErrorReachesThoseThatComeLater) {
  Meeting meeting(3);
  meeting.client(0).Fail(absl::NotFoundError("rank 0 has no data"));
  meeting.Move();
  const size_t late = meeting.Add(2);
  meeting.client(late).Publish(1, "");
  meeting.client(late).Fail(absl::InternalError("another"));
  meeting.Move();
  for (const size_t i : {size_t{0}, late}) {
    EXPECT_THAT(meeting.Outcome(i),
                StatusIs(absl::StatusCode::kNotFound, "rank 0 has no data"));
  }
}

TEST(RendezvousServerTest, GivingUpNamesTheRanksThatDidNotCome) {
  for (const auto& [world_size, want] :
       {std::pair<int, std::string>{4,
                                    "ranks 1, 3 of 4 did not come within "
                                    "1.5s"},
        {40,
         "17, 18, 19, 20, 21 and 18 more of 40 did not come within 1.5s"}}) {
    Meeting meeting(world_size);
    const size_t two = meeting.Add(2);
    meeting.client(0).Publish(1, "");
    meeting.client(two).Publish(1, "");
    meeting.Move();
    meeting.client(two).GiveUp(absl::Milliseconds(1500));
    meeting.Move();
    for (const size_t i : {size_t{0}, two}) {
      EXPECT_THAT(
          meeting.Outcome(i),
          StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(want)));
    }
  }
}

TEST(RendezvousServerTest, GivingUpTooLateChangesNothing) {
  Meeting meeting(2);
  const size_t one = meeting.Add(1);
  meeting.client(one).Publish(1, "one");
  meeting.Move();
  meeting.client(one).GiveUp(absl::Seconds(1));
  meeting.client(0).Publish(1, "zero");
  // Rank 0's blob arrives first.
  meeting.server().Receive(meeting.id(0), meeting.client(0).Output());
  meeting.client(0).Sent(meeting.client(0).Output().size());
  meeting.Move();
  for (const size_t i : {size_t{0}, one}) {
    EXPECT_THAT(meeting.Outcome(i), IsOkAndHolds(ElementsAre("zero", "one")));
  }
}

TEST(RendezvousServerTest, RanksThatLeaveOrDieAreNamed) {
  for (const bool leaves : {true, false}) {
    for (const bool waits : {true, false}) {
      Meeting meeting(2);
      const size_t one = meeting.Add(1);
      meeting.Move();
      if (waits) meeting.client(0).Publish(1, "");
      meeting.Move();
      if (leaves) {
        meeting.client(one).Leave();
      } else {
        meeting.Disconnect(one);
      }
      meeting.Move();
      if (!waits) meeting.client(0).Publish(1, "");
      meeting.Move();
      EXPECT_THAT(meeting.Outcome(0),
                  StatusIs(absl::StatusCode::kUnavailable,
                           absl::StrCat("rendezvous: rank 1 (pid 101) ",
                                        leaves ? "left" : "died")));
    }
  }
}

TEST(RendezvousServerTest, RankThatBreaksTheProtocolEndsTheRun) {
  for (const auto& [bytes, want] :
       {std::pair<std::string, std::string>{"junk!", "sent not a frame"},
        {EncodeFrame({FrameKind::kPublish, 0, 2, ""}),
         "published in round 2 when it was round 1"},
        {EncodeFrame({FrameKind::kResult, 0, 1, ""}),
         "sent a frame of kind 6 out of turn"}}) {
    Meeting meeting(2);
    const size_t one = meeting.Add(1);
    meeting.client(0).Publish(1, "");
    meeting.Move();
    meeting.server().Receive(meeting.id(one), bytes);
    meeting.Move();
    EXPECT_THAT(meeting.Outcome(0),
                StatusIs(absl::StatusCode::kDataLoss,
                         absl::StrCat("rendezvous: rank 1 (pid 101) ", want)));
  }
}

TEST(RendezvousServerTest, StrangersHaveLittleTime) {
  Meeting meeting(2);
  RendezvousServer& server = meeting.server();
  EXPECT_EQ(server.NextTick(), absl::InfiniteDuration());
  const auto first = server.AddStranger(absl::Seconds(1), NextNonce());
  const auto second = server.AddStranger(absl::Seconds(2), NextNonce());
  EXPECT_EQ(server.NextTick(), absl::Seconds(1) + kHandshakeTimeout);
  server.Tick(server.NextTick() - absl::Nanoseconds(1));
  EXPECT_FALSE(server.ShouldClose(first));
  server.Tick(server.NextTick());
  EXPECT_TRUE(server.ShouldClose(first));
  EXPECT_FALSE(server.ShouldClose(second));
  // A member has no time limit.
  server.Tick(absl::Hours(100));
  EXPECT_FALSE(server.ShouldClose(meeting.id(0)));
}

TEST(RendezvousServerTest, OldestStrangerMakesRoom) {
  Meeting meeting(2);
  RendezvousServer& server = meeting.server();
  EXPECT_FALSE(server.CloseOldestStranger());
  std::vector<RendezvousServer::SessionId> ids;
  for (int i = 0; i < kMaxStrangers + 2; ++i) {
    ids.push_back(server.AddStranger(absl::ZeroDuration(), NextNonce()));
  }
  EXPECT_FALSE(server.ShouldClose(ids[0]));
  ids.push_back(server.AddStranger(absl::ZeroDuration(), NextNonce()));
  EXPECT_TRUE(server.ShouldClose(ids[0]));
  EXPECT_FALSE(server.ShouldClose(ids[1]));
  EXPECT_TRUE(server.CloseOldestStranger());
  EXPECT_TRUE(server.ShouldClose(ids[1]));
  EXPECT_FALSE(server.ShouldClose(meeting.id(0)));
}

}  // namespace
}  // namespace lockstep
