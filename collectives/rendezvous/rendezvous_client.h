// A rank's side of the TCP rendezvous, as bytes in and bytes out.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_CLIENT_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/frame.h"
#include "collectives/rendezvous/handshake.h"

namespace lockstep {

// One connection of one rank. Knows no sockets, as RendezvousServer does not.
// What it was asked to send waits until the server has shown that it knows the
// token. Not thread safe.
class RendezvousClient {
 public:
  struct Options {
    std::string where;  // Begins every message: "rendezvous host:port".
    RankClaim claim;
    std::string token;
  };

  // Begins with the handshake.
  RendezvousClient(Options options, const Nonce& nonce);
  // Of rank 0, whose session needs none.
  static RendezvousClient ForRankZero(Options options);

  // Whether the server has let this rank in.
  bool joined() const { return joined_; }
  // Rank 0, with its pid if it is known.
  std::string ServerName() const;

  // Begins round `round`, counted from 1: outcome() tells how it ended.
  void Publish(uint32_t round, absl::string_view blob);
  // Fails the run: the server answers with the failure that came first.
  void Fail(const absl::Status& failure);
  // Asks the server to fail the run, as the deadline of the round has passed.
  void GiveUp(absl::Duration timeout);
  // Takes no part any more; the connection is to be ended.
  void Leave();

  // What came over the connection.
  void Receive(absl::string_view bytes);

  // The blobs of the round by rank, or why there are none: what the server
  // sent, or kUnauthenticated if the two do not know the same token, or what
  // FrameReader says of who does not follow the protocol. None before that.
  const std::optional<absl::StatusOr<std::vector<std::string>>>& outcome()
      const {
    return outcome_;
  }

  // What is to be sent next; "" for nothing.
  absl::string_view Output() const;
  // `size` bytes of Output are on their way.
  void Sent(size_t size);

 private:
  void Handle(const Frame& frame);
  void TakeWelcome(const Frame& frame);
  void TakeResult(const Frame& frame);
  void Ask(const Frame& frame);
  void End(absl::StatusCode code, absl::string_view what);

  Options options_;
  Nonce nonce_ = {};
  FrameReader reader_;
  bool joined_ = false;
  uint32_t server_pid_ = 0;
  Nonce server_nonce_ = {};
  Frame join_;           // As it was sent.
  std::string waiting_;  // Asked for before the server was known.
  std::string output_;
  size_t sent_ = 0;  // Bytes of output_.
  uint32_t round_ = 0;
  std::vector<std::string> results_;  // Of this round, so far.
  std::optional<absl::StatusOr<std::vector<std::string>>> outcome_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_CLIENT_H_
