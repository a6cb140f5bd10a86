// Tests of the input that a rendezvous reads from unknown senders: the records
// of a file, the handshake of TCP, and both sides of its protocol on arbitrary
// bytes. Also tests that the fuzz checks detect broken code.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/protocol.h"
#include "collectives/rendezvous/record_file.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/rendezvous_check.h"
#include "collectives/rendezvous/rendezvous_sessions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

RendezvousRecord MakeRecord(int rank, const std::string& blob) {
  return {.kind = rank == 1 ? RecordKind::kLeave : RecordKind::kPublish,
          .meeting = uint64_t{1} << (32 + rank),
          .round = static_cast<uint32_t>(rank) + 1,
          .rank = rank,
          .world_size = 3,
          .writer = {1000 + rank, 123456789},
          .token = 0x0123456789abcdef + static_cast<uint64_t>(rank),
          .written_ticks = 987654321,
          .blob = blob};
}

std::vector<RendezvousRecord> ThreeRecords() {
  return {MakeRecord(0, "here I am"), MakeRecord(1, ""),
          MakeRecord(2, std::string("\0\xff zero", 7))};
}

std::string EncodeAll(const std::vector<RendezvousRecord>& records) {
  std::string bytes;
  for (const RendezvousRecord& record : records) bytes += Encode(record);
  return bytes;
}

TEST(RecordTest, TakesTheLargestBlobAndNoFieldBeyond) {
  const RendezvousRecord record =
      MakeRecord(0, std::string(kMaxBlobBytes, 'b'));
  const auto parsed = ParseRecords(Encode(record));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->records, std::vector<RendezvousRecord>{record});
  EXPECT_THAT(
      ParseRecords(Encode(MakeRecord(0, std::string(kMaxBlobBytes + 1, 'b')))),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong field")));
  RendezvousRecord outside = MakeRecord(0, "");
  outside.rank = outside.world_size;
  EXPECT_THAT(ParseRecords(Encode(outside)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong field")));
}

TEST(RecordTest, ParsesWhatItEncodesAndWaitsForTheRestOfIt) {
  const std::vector<RendezvousRecord> three = ThreeRecords();
  const std::string bytes = EncodeAll(three);
  std::vector<RendezvousRecord> whole;
  for (size_t size = 0; size <= bytes.size(); ++size) {
    if (const RendezvousRecord& next = three[whole.size() % three.size()];
        EncodeAll(whole).size() + Encode(next).size() == size) {
      whole.push_back(next);
    }
    const auto parsed = ParseRecords(absl::string_view(bytes).substr(0, size));
    ASSERT_THAT(parsed, IsOk()) << size;
    EXPECT_EQ(parsed->records, whole) << size;
    EXPECT_EQ(parsed->used, EncodeAll(whole).size());
  }
  EXPECT_EQ(whole, three);
}

TEST(RecordTest, SomethingElseIsNamedWithItsPlace) {
  for (const std::string& text :
       {std::string("{\"json\": 1}"), std::string("\0", 1)}) {
    EXPECT_THAT(ParseRecords(text),
                StatusIs(absl::StatusCode::kDataLoss,
                         "byte 0: not a rendezvous record"));
  }
  EXPECT_THAT(ParseRecords(Encode(MakeRecord(1, "")) + "x"),
              StatusIs(absl::StatusCode::kDataLoss,
                       "byte 72: not a rendezvous record"));
}

// Returns whether `records` are the first of the three that were written: a
// changed record must never be accepted.
bool IsBeginning(const std::vector<RendezvousRecord>& records) {
  const std::vector<RendezvousRecord> three = ThreeRecords();
  return records.size() <= three.size() &&
         std::equal(records.begin(), records.end(), three.begin());
}

// Sets every byte to every other value: 214 * 255 files.
TEST(RecordTest, NoChangedByteIsAccepted) {
  const std::string bytes = EncodeAll(ThreeRecords());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int change = 1; change < 256; ++change) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ change);
      const auto parsed = ParseRecords(changed);
      if (!parsed.ok()) {
        EXPECT_THAT(parsed,
                    StatusIs(absl::StatusCode::kDataLoss, HasSubstr("byte ")));
        continue;
      }
      // If a size is changed, the last records can look unfinished.
      EXPECT_TRUE(IsBeginning(parsed->records) && parsed->records.size() < 3)
          << "byte " << at << " xor " << change;
    }
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

// The expected values are computed by Python's hmac from the same parts.
TEST(HandshakeTest, ProofsAreHmacSha256OfTheDocumentedParts) {
  EXPECT_EQ(
      absl::BytesToHexString(Join().payload.substr(kNonceBytes, kProofBytes)),
      "d1251d4ad122ffd5065097216f4b473b"
      "6afe3e59163266d687f37bdcf292c006");
  EXPECT_EQ(absl::BytesToHexString(Welcome().payload),
            "971d31475a584b2bc8a25c6c7728404b"
            "f7f763672c7e028f44159bacc6473e45");
}

TEST(HandshakeTest, EachSideBelievesWhoKnowsTheTokenAndNobodyElse) {
  EXPECT_EQ(NonceOfGreeting(GreetingFrame(kServerNonce)), kServerNonce);
  EXPECT_EQ(ClaimOfJoin(Join()), kClaim);
  EXPECT_TRUE(JoinKnowsToken(kToken, kServerNonce, Join()));
  EXPECT_TRUE(WelcomeKnowsToken(kToken, kServerNonce, Join(), Welcome()));
  for (const absl::string_view other :
       {"", "the toke", "the token.", "The token"}) {
    EXPECT_FALSE(JoinKnowsToken(other, kServerNonce, Join()));
    EXPECT_FALSE(WelcomeKnowsToken(other, kServerNonce, Join(), Welcome()));
  }
  // An empty token is treated like any other token.
  const Frame join = JoinFrame("", kServerNonce, kRankNonce, kClaim);
  EXPECT_TRUE(JoinKnowsToken("", kServerNonce, join));
  EXPECT_FALSE(JoinKnowsToken(kToken, kServerNonce, join));
}

// A proof from another connection is invalid.
TEST(HandshakeTest, EachSideRefusesEveryOtherProof) {
  EXPECT_FALSE(JoinKnowsToken(kToken, CountingFrom(1), Join()));
  EXPECT_FALSE(WelcomeKnowsToken(kToken, CountingFrom(1), Join(), Welcome()));
  const Frame other =
      JoinFrame(kToken, kServerNonce, CountingFrom(101), kClaim);
  EXPECT_FALSE(WelcomeKnowsToken(kToken, kServerNonce, other, Welcome()));
  // The rank's own proof cannot be sent back to it.
  Frame echo = Welcome();
  echo.payload = Join().payload.substr(kNonceBytes, kProofBytes);
  EXPECT_FALSE(WelcomeKnowsToken(kToken, kServerNonce, Join(), echo));
  // Every bit of the server's proof counts.
  // RendezvousServerTest.RequestToJoinWithAnyBitChanged tests the bits of the
  // join.
  for (size_t bit = 0; bit < 8 * kProofBytes; ++bit) {
    Frame welcome = Welcome();
    welcome.payload[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_FALSE(WelcomeKnowsToken(kToken, kServerNonce, Join(), welcome));
  }
}

TEST(NonceTest, NeverRepeatsItself) {
  std::set<Nonce> seen;
  for (int i = 0; i < 2000; ++i) {
    EXPECT_TRUE(seen.insert(NewNonce().value()).second);
  }
}

// Returns rank 1 of 2, which publishes "secret", after the welcome of a server
// that may know the token or not.
RendezvousClient Welcomed(absl::string_view servers_token) {
  RendezvousClient client({"rendezvous", {1, 2, 7}, kToken}, Nonce{1});
  client.Publish(1, "secret");
  client.Receive(EncodeFrame(GreetingFrame(Nonce{2})));
  Frame join = {FrameKind::kJoin, 1, 2,
                std::string(client.Output().substr(kFrameHeaderBytes))};
  EXPECT_EQ(client.Output().size(), kFrameHeaderBytes + kJoinBytes);
  client.Sent(client.Output().size());
  client.Receive(EncodeFrame(WelcomeFrame(servers_token, Nonce{2}, join, 1)));
  return client;
}

// A process that poses as rank 0 gets a request to join and nothing more.
TEST(RendezvousClientTest, RefusesAServerThatDoesNotKnowTheToken) {
  const RendezvousClient client = Welcomed("a guess");
  EXPECT_FALSE(client.joined());
  ASSERT_TRUE(client.outcome().has_value());
  EXPECT_THAT(*client.outcome(),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       "rendezvous: the program there does not know the "
                       "token"));
  EXPECT_EQ(client.Output(), "");
}

// The control: a server that knows the token gets what the rank publishes.
TEST(RendezvousClientTest, PublishesToAServerThatKnowsTheToken) {
  const RendezvousClient client = Welcomed(kToken);
  EXPECT_TRUE(client.joined());
  EXPECT_EQ(client.ServerName(), "rank 0 (pid 1)");
  EXPECT_EQ(client.Output(),
            EncodeFrame({FrameKind::kPublish, 0, 1, "secret"}));
}

TEST(RendezvousClientTest, SaysWhatListensInPlaceOfRankZero) {
  RendezvousClient client({"rendezvous", {1, 2, 7}, kToken}, Nonce{1});
  client.Receive("HTTP/1.1 400 Bad Request\r\n");
  ASSERT_TRUE(client.outcome().has_value());
  EXPECT_THAT(*client.outcome(),
              StatusIs(absl::StatusCode::kDataLoss,
                       "rendezvous: the program there is not this run's rank "
                       "0: it sent not a frame"));
}

using Input = std::vector<uint8_t>;

constexpr int kMutations = 4000;

uint8_t Step(ServerStep step) { return static_cast<uint8_t>(step); }

// Returns the input in which three ranks meet twice; `way` as in ServerStep.
Input TwoRounds(uint8_t way) {
  Input input;
  for (uint8_t rank = 1; rank <= 2; ++rank) {
    input.insert(input.end(), {Step(ServerStep::kConnect),
                               Step(ServerStep::kJoin), rank, rank, 0, way});
  }
  for (uint8_t round = 1; round <= 2; ++round) {
    for (uint8_t rank = 0; rank <= 2; ++rank) {
      input.insert(input.end(),
                   {Step(ServerStep::kPublish), rank, round, rank, way});
    }
  }
  return input;
}

Input Followed(Input input, const Input& by) {
  input.insert(input.end(), by.begin(), by.end());
  return input;
}

std::vector<Input> ServerSeeds() {
  const Input met = TwoRounds(0);
  Input strangers;
  for (int i = 0; i < kMaxStrangers + 2 * kServerCheckWorldSize; ++i) {
    strangers.push_back(Step(ServerStep::kConnect));
  }
  return {
      met,
      TwoRounds(1),
      Followed(met, {Step(ServerStep::kPublish), 0, 3, 0, 0,
                     Step(ServerStep::kGiveUp), 0, 9, 0}),
      Followed(met, {Step(ServerStep::kPublish), 0, 3, 0, 0,
                     Step(ServerStep::kDisconnect), 1}),
      Followed(met, {Step(ServerStep::kLeave), 2, 0, Step(ServerStep::kPublish),
                     1, 3, 0, 0}),
      Followed(met, {Step(ServerStep::kFail), 1, 14, 1}),
      Followed(met, {Step(ServerStep::kSend), 1, 4, 'L', 'S', 'R', 'x'}),
      // A rank of another world size, a rank that has joined already, a number
      // that is no rank, and a rank of another run.
      {Step(ServerStep::kConnect), Step(ServerStep::kJoin), 1, 1, 1, 0},
      {Step(ServerStep::kConnect), Step(ServerStep::kJoin), 1, 0, 0, 0},
      {Step(ServerStep::kConnect), Step(ServerStep::kJoin), 1, 9, 0, 0},
      {Step(ServerStep::kConnect), Step(ServerStep::kJoinAsOther), 1, 1, 0, 1},
      // Strangers that send nothing, too little, too much; and too many
      // strangers.
      {Step(ServerStep::kConnect), Step(ServerStep::kWait), 60},
      {Step(ServerStep::kConnect), Step(ServerStep::kSend), 1, 3, 'L', 'S',
       'R'},
      {Step(ServerStep::kConnect), Step(ServerStep::kSend), 1, 4, 'G', 'E', 'T',
       ' '},
      {Step(ServerStep::kConnect), Step(ServerStep::kStopReading), 1,
       Step(ServerStep::kJoin), 1, 1, 0, 0},
      strangers,
  };
}

std::vector<Input> ClientSeeds() {
  const std::string results = EncodeFrame({FrameKind::kResult, 0, 1, "mine"}) +
                              EncodeFrame({FrameKind::kResult, 1, 1, "yours"});
  std::vector<Input> seeds;
  for (const std::string& bytes :
       {results, results + results,
        EncodeFrame({FrameKind::kFailure, 0, 14, "rank 1 died"}),
        EncodeFrame({FrameKind::kGreeting, 0, 0, std::string(32, 'n')}) +
            EncodeFrame({FrameKind::kWelcome, 0, 7, std::string(32, 'p')}),
        EncodeFrame({FrameKind::kGreeting, 0, 0, std::string(32, 'n')}) +
            EncodeFrame({FrameKind::kDenied, 0, 0, ""})}) {
    for (const uint8_t piece : {1, 7, 255}) {
      Input seed = {piece};
      std::copy(bytes.begin(), bytes.end(), std::back_inserter(seed));
      seeds.push_back(seed);
    }
  }
  return seeds;
}

// Returns a seed with one or several small changes, one of which can be the
// beginning of another seed.
Input Mutate(const std::vector<Input>& seeds, std::mt19937& random) {
  const auto below = [&](size_t end) { return end == 0 ? 0 : random() % end; };
  Input input = seeds[below(seeds.size())];
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const auto at = input.begin() + static_cast<int64_t>(below(input.size()));
    const Input& other = seeds[below(seeds.size())];
    switch (below(5)) {
      case 0:
        if (!input.empty()) *at = static_cast<uint8_t>(random());
        break;
      case 1:
        if (!input.empty()) *at ^= static_cast<uint8_t>(1 << below(8));
        break;
      case 2:
        input.insert(at, static_cast<uint8_t>(random()));
        break;
      case 3:
        if (!input.empty()) input.erase(at);
        break;
      default:
        input.insert(at, other.begin(),
                     other.begin() + static_cast<int64_t>(below(other.size())));
    }
  }
  return input;
}

// A mutation may also insert one or several whole records.
TEST(RecordTest, NoMutationIsAccepted) {
  const std::vector<RendezvousRecord> three = ThreeRecords();
  std::vector<Input> seeds;
  for (const std::string& bytes : {EncodeAll(three), Encode(three[0])}) {
    seeds.emplace_back(bytes.begin(), bytes.end());
  }
  std::mt19937 random(17);
  for (int round = 0; round < 20000; ++round) {
    const Input changed = Mutate(seeds, random);
    const auto parsed =
        ParseRecords(std::string(changed.begin(), changed.end()));
    if (!parsed.ok()) continue;
    for (const RendezvousRecord& record : parsed->records) {
      EXPECT_NE(std::find(three.begin(), three.end(), record), three.end());
    }
  }
}

TEST(ServerFuzzTest, SeedsReachWhatTheyAreFor) {
  const ServerCheckResult met = CheckServer(TwoRounds(0));
  EXPECT_EQ(met.wrong, "");
  EXPECT_EQ(met.joined, 2);
  EXPECT_EQ(met.results, 2 * 3 * 3);
  EXPECT_EQ(met.failures, 0);
  EXPECT_EQ(CheckServer(TwoRounds(1)).results, met.results);
  ServerCheckResult sum;
  for (const Input& seed : ServerSeeds()) {
    const ServerCheckResult result = CheckServer(seed);
    EXPECT_EQ(result.wrong, "");
    sum.denied += result.denied;
    sum.failures += result.failures;
  }
  EXPECT_EQ(sum.denied, 1);
  EXPECT_GE(sum.failures, 3 * 5);
}

TEST(ServerFuzzTest, KeepsItsPromisesOnMutations) {
  std::mt19937 random(17);
  const std::vector<Input> seeds = ServerSeeds();
  ServerCheckResult sum;
  for (int i = 0; i < kMutations; ++i) {
    const ServerCheckResult result = CheckServer(Mutate(seeds, random));
    ASSERT_EQ(result.wrong, "") << "mutation " << i;
    sum.joined += result.joined;
    sum.denied += result.denied;
    sum.results += result.results;
    sum.failures += result.failures;
  }
  // Otherwise the mutations would have tested only the refusals.
  EXPECT_GT(sum.joined, kMutations / 2);
  EXPECT_GT(sum.denied, kMutations / 100);
  EXPECT_GT(sum.results, kMutations);
  EXPECT_GT(sum.failures, kMutations / 4);
}

// The controls: the check detects a server that is broken in each of these
// ways.
TEST(ServerFuzzTest, FindsOutABrokenServer) {
  EXPECT_EQ(CheckServer(TwoRounds(0), [](bool, std::string&) {}).wrong, "");
  const struct {
    bool to_members;  // Otherwise to strangers.
    std::function<void(std::string& sent)> tamper;
    std::string wrong;
  } kCases[] = {
      {true, [](std::string& sent) { sent.back() ^= 1; },
       "a result that is not what the rank published"},
      {true, [](std::string& sent) { sent += sent; }, "a result out of turn"},
      {false,
       [](std::string& sent) {
         sent += EncodeFrame({FrameKind::kWelcome, 0, 1, std::string(32, 'p')});
       },
       "a stranger was let in"},
      {false,
       [](std::string& sent) {
         sent += EncodeFrame({FrameKind::kResult, 0, 1, "x"});
       },
       "a stranger was sent a result"},
      {false, [](std::string& sent) { sent += "GET / HTTP/1.1\r\n\r\n...."; },
       "the server sent not a frame"},
  };
  for (const auto& test : kCases) {
    const auto tamper = [&](bool joined, std::string& sent) {
      if (joined == test.to_members) test.tamper(sent);
    };
    EXPECT_EQ(CheckServer(TwoRounds(0), tamper).wrong, test.wrong);
  }
}

TEST(ClientFuzzTest, KeepsItsPromisesOnMutations) {
  std::mt19937 random(17);
  const std::vector<Input> seeds = ClientSeeds();
  int finished = 0;
  int failed = 0;
  for (int i = 0; i < kMutations; ++i) {
    const Input input =
        i < static_cast<int>(seeds.size()) ? seeds[i] : Mutate(seeds, random);
    const ClientCheckResult result = CheckClient(input);
    ASSERT_EQ(result.wrong, "") << "mutation " << i;
    finished += result.finished ? 1 : 0;
    failed += result.failed ? 1 : 0;
  }
  EXPECT_GT(finished, kMutations / 200);
  EXPECT_GT(failed, kMutations / 4);
}

}  // namespace
}  // namespace lockstep
