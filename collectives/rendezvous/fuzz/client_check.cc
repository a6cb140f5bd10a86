// Two clients at the mercy of the input.
#include "collectives/rendezvous/fuzz/client_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/rendezvous/frame.h"
#include "collectives/rendezvous/handshake.h"
#include "collectives/rendezvous/rendezvous_client.h"

namespace lockstep {
namespace {

constexpr uint32_t kWorldSize = 2;

void Feed(RendezvousClient& client, absl::string_view bytes, size_t piece) {
  for (size_t at = 0; at < bytes.size(); at += piece) {
    client.Receive(bytes.substr(at, piece));
  }
}

RendezvousClient WaitingRank() {
  RendezvousClient client =
      RendezvousClient::ForRankZero({"rendezvous", {0, kWorldSize, 1}, ""});
  client.Publish(1, "mine");
  return client;
}

std::string CheckStranger(absl::string_view bytes, size_t piece) {
  RendezvousClient client({"rendezvous", {1, kWorldSize, 1}, "the token"},
                          Nonce{});
  client.Publish(1, "what is published");
  Feed(client, bytes, piece);
  if (client.joined()) return "joined a server that does not know the token";
  if (client.outcome().has_value() && client.outcome()->ok()) {
    return "met ranks without having joined";
  }
  if (client.Output().size() > kFrameHeaderBytes + kJoinBytes) {
    return "sent more than a request to join";
  }
  return "";
}

// What two results of round 1 look like at the beginning of `bytes`.
std::string EncodeResults(const std::vector<std::string>& blobs) {
  std::string bytes;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    bytes += EncodeFrame(
        {FrameKind::kResult, static_cast<int32_t>(rank), 1, blobs[rank]});
  }
  return bytes;
}

}  // namespace

ClientCheckResult CheckClient(std::span<const uint8_t> input) {
  ClientCheckResult result;
  if (input.empty()) return result;
  const size_t piece = std::max<size_t>(input.front(), 1);
  const std::string bytes(input.begin() + 1, input.end());
  result.wrong = CheckStranger(bytes, piece);

  RendezvousClient client = WaitingRank();
  Feed(client, bytes, piece);
  RendezvousClient at_once = WaitingRank();
  at_once.Receive(bytes);
  if (client.outcome().has_value() != at_once.outcome().has_value()) {
    result.wrong = "the outcome depends on the sizes of the pieces";
  }
  if (!client.outcome().has_value()) return result;
  const absl::StatusOr<std::vector<std::string>>& outcome = *client.outcome();
  result.finished = outcome.ok();
  result.failed = !outcome.ok();
  if (outcome.status() != at_once.outcome()->status()) {
    result.wrong = "the outcome depends on the sizes of the pieces";
  }
  if (outcome.ok() && (outcome->size() != kWorldSize ||
                       bytes.rfind(EncodeResults(*outcome), 0) != 0)) {
    result.wrong = "finished a round with other blobs than were sent";
  }
  return result;
}

}  // namespace lockstep
