// What a rank says to whoever listens in place of rank 0.
#include "collectives/rendezvous/rendezvous_client.h"

#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/frame.h"
#include "collectives/rendezvous/handshake.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr char kToken[] = "the token";

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
