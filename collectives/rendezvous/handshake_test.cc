// The frames of the TCP rendezvous, who is believed to know the token, and what
// a rank says to whoever listens in place of rank 0.
#include "collectives/rendezvous/handshake.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/frame.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/rendezvous_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

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

// All frames of `bytes`, given to the reader in pieces of one size; an error
// ends them.
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

// Of each byte that may not be any other: refused as soon as it is there, and
// not before.
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
      const absl::StatusCode want = at == 4
                                        ? absl::StatusCode::kFailedPrecondition
                                        : absl::StatusCode::kDataLoss;
      ASSERT_EQ(reader.Next().status().code(), want) << at << " " << value;
      ASSERT_EQ(reader.Next().status().code(), want);  // It stays.
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

TEST(FrameTest, NamesTheVersionThatItDoesNotKnow) {
  FrameReader reader(kAll);
  reader.Append("LSRT\x07");
  EXPECT_THAT(reader.Next().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "version 7 of the protocol, and not 1"));
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

constexpr char kToken[] = "the token";
constexpr RankClaim kClaim = {3, 8, 1234};

Nonce CountingFrom(int first) {
  Nonce nonce;
  for (unsigned char& byte : nonce) {
    byte = static_cast<unsigned char>(first++);
  }
  return nonce;
}

const Nonce kServerNonce = CountingFrom(0);
const Nonce kRankNonce = CountingFrom(100);

Frame Join() { return JoinFrame(kToken, kServerNonce, kRankNonce, kClaim); }

Frame Welcome() { return WelcomeFrame(kToken, kServerNonce, Join(), 99); }

// As computed by Python's hmac from the same parts.
TEST(HandshakeTest, ProofsAreHmacSha256OfTheDocumentedParts) {
  EXPECT_EQ(
      absl::BytesToHexString(Join().payload.substr(kNonceBytes, kProofBytes)),
      "d1251d4ad122ffd5065097216f4b473b"
      "6afe3e59163266d687f37bdcf292c006");
  EXPECT_EQ(absl::BytesToHexString(Welcome().payload),
            "971d31475a584b2bc8a25c6c7728404b"
            "f7f763672c7e028f44159bacc6473e45");
}

TEST(HandshakeTest, EachSideBelievesWhoKnowsTheToken) {
  EXPECT_EQ(NonceOfGreeting(GreetingFrame(kServerNonce)), kServerNonce);
  EXPECT_EQ(ClaimOfJoin(Join()), kClaim);
  EXPECT_TRUE(JoinKnowsToken(kToken, kServerNonce, Join()));
  EXPECT_TRUE(WelcomeKnowsToken(kToken, kServerNonce, Join(), Welcome()));
}

TEST(HandshakeTest, EachSideRefusesAnotherToken) {
  for (const absl::string_view other :
       {"", "the toke", "the token.", "The token"}) {
    EXPECT_FALSE(JoinKnowsToken(other, kServerNonce, Join()));
    EXPECT_FALSE(WelcomeKnowsToken(other, kServerNonce, Join(), Welcome()));
  }
}

TEST(HandshakeTest, EmptyTokenIsATokenLikeAnother) {
  const Frame join = JoinFrame("", kServerNonce, kRankNonce, kClaim);
  EXPECT_TRUE(JoinKnowsToken("", kServerNonce, join));
  EXPECT_FALSE(JoinKnowsToken(kToken, kServerNonce, join));
}

// A proof that was heard on another connection is worth nothing.
TEST(HandshakeTest, EachSideRefusesAProofForOtherNonces) {
  EXPECT_FALSE(JoinKnowsToken(kToken, CountingFrom(1), Join()));
  EXPECT_FALSE(WelcomeKnowsToken(kToken, CountingFrom(1), Join(), Welcome()));
  const Frame other =
      JoinFrame(kToken, kServerNonce, CountingFrom(101), kClaim);
  EXPECT_FALSE(WelcomeKnowsToken(kToken, kServerNonce, other, Welcome()));
}

TEST(HandshakeTest, NeitherSideCanSendTheOthersProofBack) {
  Frame echo = Welcome();
  echo.payload = Join().payload.substr(kNonceBytes, kProofBytes);
  EXPECT_FALSE(WelcomeKnowsToken(kToken, kServerNonce, Join(), echo));
}

TEST(HandshakeTest, EveryBitOfWhatIsProvedCounts) {
  for (int bit = 0; bit < 32; ++bit) {
    Frame rank = Join();
    rank.rank ^= static_cast<int32_t>(uint32_t{1} << bit);
    EXPECT_FALSE(JoinKnowsToken(kToken, kServerNonce, rank)) << bit;
    Frame size = Join();
    size.number ^= uint32_t{1} << bit;
    EXPECT_FALSE(JoinKnowsToken(kToken, kServerNonce, size)) << bit;
  }
  for (size_t bit = 0; bit < 8 * kJoinBytes; ++bit) {
    Frame join = Join();
    join.payload[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_FALSE(JoinKnowsToken(kToken, kServerNonce, join)) << bit;
  }
  for (size_t bit = 0; bit < 8 * kProofBytes; ++bit) {
    Frame welcome = Welcome();
    welcome.payload[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_FALSE(WelcomeKnowsToken(kToken, kServerNonce, Join(), welcome));
  }
}

TEST(NonceSourceTest, NeverRepeatsItselfOrAnother) {
  std::set<Nonce> seen;
  for (int i = 0; i < 2; ++i) {
    auto source = NonceSource::Create();
    ASSERT_THAT(source, IsOk());
    for (int k = 0; k < 1000; ++k)
      EXPECT_TRUE(seen.insert(source->Next()).second);
  }
  NonceSource a(Nonce{});
  NonceSource b(Nonce{});
  EXPECT_EQ(a.Next(), b.Next());
}

// Who poses as rank 0 gets a request to join and no more.
TEST(RendezvousClientTest, RefusesAServerThatDoesNotKnowTheToken) {
  RendezvousClient client({"rendezvous", {1, 2, 7}, kToken}, Nonce{1});
  client.Publish(1, "secret");
  client.Receive(EncodeFrame(GreetingFrame(Nonce{2})));
  Frame join;
  join.payload = std::string(client.Output().substr(kFrameHeaderBytes));
  client.Receive(EncodeFrame(WelcomeFrame("a guess", Nonce{2}, join, 1)));
  EXPECT_FALSE(client.joined());
  ASSERT_TRUE(client.outcome().has_value());
  EXPECT_THAT(*client.outcome(),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       "rendezvous: what listens there does not know the "
                       "token"));
  EXPECT_EQ(client.Output().size(), kFrameHeaderBytes + kJoinBytes);
}

TEST(RendezvousClientTest, SaysWhatListensInPlaceOfRankZero) {
  RendezvousClient client({"rendezvous", {1, 2, 7}, kToken}, Nonce{1});
  client.Receive("HTTP/1.1 400 Bad Request\r\n");
  ASSERT_TRUE(client.outcome().has_value());
  EXPECT_THAT(*client.outcome(),
              StatusIs(absl::StatusCode::kDataLoss,
                       "rendezvous: what listens there is not this run's rank "
                       "0: it sent not a frame"));
}

// The control: who knows the token is told what there is to publish.
TEST(RendezvousClientTest, PublishesToAServerThatKnowsTheToken) {
  RendezvousClient client({"rendezvous", {1, 2, 7}, kToken}, Nonce{1});
  client.Publish(1, "secret");
  client.Receive(EncodeFrame(GreetingFrame(Nonce{2})));
  Frame join;
  join.rank = 1;
  join.number = 2;
  join.payload = std::string(client.Output().substr(kFrameHeaderBytes));
  client.Sent(client.Output().size());
  client.Receive(EncodeFrame(WelcomeFrame(kToken, Nonce{2}, join, 1)));
  EXPECT_TRUE(client.joined());
  EXPECT_EQ(client.ServerName(), "rank 0 (pid 1)");
  EXPECT_EQ(client.Output(),
            EncodeFrame({FrameKind::kPublish, 0, 1, "secret"}));
}

}  // namespace
}  // namespace lockstep
