// The fuzz checks on seeds and on mutations of them; and that they find out
// what is broken.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "collectives/rendezvous/frame.h"
#include "collectives/rendezvous/fuzz/rendezvous_check.h"
#include "collectives/rendezvous/rendezvous_server.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Input = std::vector<uint8_t>;

constexpr int kMutations = 4000;

uint8_t Step(ServerStep step) { return static_cast<uint8_t>(step); }

// Three ranks meet twice; `way` as in ServerStep.
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
      // A rank of another world size, one that is there, one that is none, and
      // one of another run.
      {Step(ServerStep::kConnect), Step(ServerStep::kJoin), 1, 1, 1, 0},
      {Step(ServerStep::kConnect), Step(ServerStep::kJoin), 1, 0, 0, 0},
      {Step(ServerStep::kConnect), Step(ServerStep::kJoin), 1, 9, 0, 0},
      {Step(ServerStep::kConnect), Step(ServerStep::kJoinAsOther), 1, 1, 0, 1},
      // Strangers that say nothing, too little, too much; and too many of them.
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

// One or several small changes, the beginning of another input among them.
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
  // Else the mutations would have tested the refusals alone.
  EXPECT_GT(sum.joined, kMutations / 2);
  EXPECT_GT(sum.denied, kMutations / 100);
  EXPECT_GT(sum.results, kMutations);
  EXPECT_GT(sum.failures, kMutations / 4);
}

// The controls: a server that is broken in each of these ways is found out.
TEST(ServerFuzzTest, FindsOutABrokenServer) {
  const auto wrong = [](const std::function<void(bool, std::string&)>& tamper) {
    return CheckServer(TwoRounds(0), tamper).wrong;
  };
  EXPECT_EQ(wrong([](bool, std::string&) {}), "");
  EXPECT_EQ(wrong([](bool joined, std::string& sent) {
              if (joined) sent.back() ^= 1;
            }),
            "a result that is not what the rank published");
  EXPECT_EQ(wrong([](bool joined, std::string& sent) {
              if (joined) sent += sent;
            }),
            "a result out of turn");
  EXPECT_EQ(wrong([](bool joined, std::string& sent) {
              if (!joined)
                sent += EncodeFrame(
                    {FrameKind::kWelcome, 0, 1, std::string(32, 'p')});
            }),
            "a stranger was let in");
  EXPECT_EQ(wrong([](bool joined, std::string& sent) {
              if (!joined) sent += EncodeFrame({FrameKind::kResult, 0, 1, "x"});
            }),
            "a stranger was sent a result");
  EXPECT_EQ(wrong([](bool joined, std::string& sent) {
              if (!joined) sent += "GET / HTTP/1.1\r\n\r\n....";
            }),
            "the server sent not a frame");
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
