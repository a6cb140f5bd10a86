// Who is believed to know the token.
#include "collectives/rendezvous/handshake.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/frame.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr absl::string_view kToken = "the token";
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

}  // namespace
}  // namespace lockstep
