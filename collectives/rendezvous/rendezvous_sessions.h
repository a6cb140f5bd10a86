// Both sides of the TCP rendezvous, as bytes in and bytes out: neither knows
// sockets, threads or clocks. Not thread safe.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_SESSIONS_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_SESSIONS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/protocol.h"

namespace lockstep {

// How long a stranger, a connection that has not joined yet, may take.
inline constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);
// Strangers at one time, besides as many as there are ranks.
inline constexpr int kMaxStrangers = 64;

// Brings the ranks of one run together. Whoever has the connections tells what
// came over each (a session) and when, and sends what is to be sent.
//
// Only who knows the token can make it keep more than kJoinBytes and a header,
// or do anything to the run. A rank that joined is trusted.
class RendezvousServer {
 public:
  using SessionId = int64_t;

  // self: the claim is rank 0's.
  explicit RendezvousServer(RendezvousEnd self);

  // Rank 0's own session, which needs no handshake. Once, and first.
  SessionId AddRankZero();
  // A new connection at `now`, the time since any fixed moment; `nonce` is a
  // new one. The stranger that has been here longest has to go if there are too
  // many.
  SessionId AddStranger(absl::Duration now, const Nonce& nonce);

  // What came over a session that is not closed.
  void Receive(SessionId id, absl::string_view bytes);
  // The connection has ended: the session does not exist any more. A rank that
  // has not said that it leaves has died.
  void Disconnect(SessionId id);
  // Sends away strangers whose time is up at `now`.
  void Tick(absl::Duration now);
  // When Tick has something to do; infinite if never.
  absl::Duration NextTick();

  // Makes room by sending the oldest stranger away; false if there is none.
  bool SendOldestStrangerAway();
  // Ends the run, unless it has failed: every rank, also one that comes later,
  // is told `failure`.
  void Fail(const absl::Status& failure);

  // What is to be sent next over the session; "" for nothing. Valid until the
  // next call of another method.
  absl::string_view Output(SessionId id) const;
  // `size` bytes of Output(id) are on their way.
  void Sent(SessionId id, size_t size);
  // The ranks that have not joined: "ranks 1, 2 and 30 more"; "" for none.
  std::string AbsentRanks() const;
  // Whether the connection is to be ended, after which Disconnect is due.
  bool ShouldClose(SessionId id) const;

 private:
  enum class Stage { kStranger, kMember, kClosing };

  struct Session {
    Session() : reader(FrameKinds(FrameKind::kJoin)) {}

    Stage stage = Stage::kStranger;
    FrameReader reader;
    Nonce nonce = {};
    absl::Duration since;  // When it was added.
    int rank = -1;         // Of a member.
    // Shared, since a round's results are the same for all.
    std::deque<std::shared_ptr<const std::string>> output;
    size_t sent = 0;  // Bytes of output.front().
  };

  enum class Presence { kAbsent, kPresent, kLeft, kDied };

  struct Member {
    Presence presence = Presence::kAbsent;
    uint32_t pid = 0;
    SessionId session = 0;            // While present.
    std::optional<std::string> blob;  // Of this round.
  };

  Member& MemberOf(const Session& session);
  // Null if there is none.
  Session* OldestStranger();
  // "rank 1 (pid 23)".
  std::string Name(int rank) const;
  // Why the round cannot end, if `rank` is missing from it for good.
  absl::Status GoneError(int rank) const;

  // Each handles a frame of its kind.
  void Handle(SessionId id, Session& session, const Frame& frame);
  void Join(SessionId id, Session& session, const Frame& frame);
  // Makes the session a member's, or says why not.
  absl::Status Admit(SessionId id, Session& session, const RankClaim& claim);
  void Enter(SessionId id, Session& session, const RankClaim& claim);
  void Publish(const Session& session, const Frame& frame);
  void GiveUp(const Session& session, const Frame& frame);

  // The rank of `session` takes no part any more.
  void Part(const Session& session, Presence presence);
  // Sends all blobs to all, and begins the next round.
  void EndRound();
  void Send(Session& session, const Frame& frame);
  // Sends nothing more, and closes at once.
  void Drop(Session& session);

  const RendezvousEnd self_;
  SessionId next_id_ = 1;
  std::map<SessionId, Session> sessions_;  // Older sessions first.
  int strangers_ = 0;
  std::vector<Member> members_;  // By rank.
  uint32_t round_ = 1;           // From 1, as Publish frames count.
  int published_ = 0;            // Blobs of this round.
  int gone_rank_ = -1;           // The first that left or died.
  absl::Status failure_;
};

// One connection of one rank. What it was asked to send waits until the server
// has shown that it knows the token.
class RendezvousClient {
 public:
  // Begins with the handshake.
  RendezvousClient(RendezvousEnd self, const Nonce& nonce);
  // Of rank 0, whose session needs none.
  static RendezvousClient ForRankZero(RendezvousEnd self);

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
  RendezvousEnd self_;
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

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_SESSIONS_H_
