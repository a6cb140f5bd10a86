// Both sides of the TCP rendezvous, as bytes in and bytes out, without sockets,
// threads or clocks. Not thread safe.
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

// How long a stranger, a connection that has not joined yet, may take to join.
inline constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);
// The number of strangers allowed at one time is this plus the world size.
inline constexpr int kMaxStrangers = 64;

// Connects the ranks of one run. The owner of the connections passes in the
// bytes that arrive over each connection (a session) and the time, and sends
// the output.
//
// A session that has not proved the token cannot make the server keep more than
// kJoinBytes and a header, and cannot affect the run. A rank that joined is
// trusted.
class RendezvousServer {
 public:
  using SessionId = int64_t;

  // self: its claim is rank 0's.
  explicit RendezvousServer(RendezvousEnd self);

  // Adds rank 0's own session, which needs no handshake. Must be called once,
  // before any other method.
  SessionId AddRankZero();
  // Adds a new connection at `now`, the time since any fixed moment. `nonce`
  // must be new. If there are too many strangers, the oldest is closed.
  SessionId AddStranger(absl::Duration now, const Nonce& nonce);

  // Takes bytes that arrived over a session that is not closed.
  void Receive(SessionId id, absl::string_view bytes);
  // Removes a session whose connection has ended. If its rank has not said that
  // it leaves, the rank has died.
  void Disconnect(SessionId id);
  // Closes strangers whose time is up at `now`.
  void Tick(absl::Duration now);
  // Returns the time of the next Tick that has something to do; infinite if
  // none has.
  absl::Duration NextTick();

  // Frees a connection by closing the oldest stranger; returns false if there
  // is none.
  bool CloseOldestStranger();
  // Ends the run, unless it has failed already: every rank gets `failure`, also
  // a rank that joins later.
  void Fail(const absl::Status& failure);

  // Returns the bytes to send next over the session; "" for none. Valid until
  // the next call of another method.
  absl::string_view Output(SessionId id) const;
  // Marks `size` bytes of Output(id) as sent.
  void Sent(SessionId id, size_t size);
  // Returns the ranks that have not joined: "ranks 1, 2 and 30 more"; "" for
  // none.
  std::string AbsentRanks() const;
  // Returns whether the connection is to be closed, followed by Disconnect.
  bool ShouldClose(SessionId id) const;

 private:
  enum class Stage { kStranger, kMember, kClosing };

  struct Session {
    Session() : reader(FrameKinds(FrameKind::kJoin)) {}

    Stage stage = Stage::kStranger;
    FrameReader reader;
    Nonce nonce = {};
    absl::Duration since;  // When it was added.
    int rank = -1;         // If it is a member's.
    // Shared, since all ranks get the same results of a round.
    std::deque<std::shared_ptr<const std::string>> output;
    size_t sent = 0;  // Bytes of output.front() that were sent.
  };

  enum class Presence { kAbsent, kPresent, kLeft, kDied };

  struct Member {
    Presence presence = Presence::kAbsent;
    uint32_t pid = 0;
    SessionId session = 0;            // If present.
    std::optional<std::string> blob;  // For this round.
  };

  Member& MemberOf(const Session& session);
  // Returns null if there is no stranger.
  Session* OldestStranger();
  // Returns "rank 1 (pid 23)".
  std::string Name(int rank) const;
  // Returns why the round cannot end, if `rank` has left or died.
  absl::Status GoneError(int rank) const;

  // Each of these methods handles a frame of its kind.
  void Handle(SessionId id, Session& session, const Frame& frame);
  void Join(SessionId id, Session& session, const Frame& frame);
  // Makes the session a member's; if not possible, returns why.
  absl::Status Admit(SessionId id, Session& session, const RankClaim& claim);
  void Enter(SessionId id, Session& session, const RankClaim& claim);
  void Publish(const Session& session, const Frame& frame);
  void GiveUp(const Session& session, const Frame& frame);

  // Records that the rank of `session` has left or died.
  void Part(const Session& session, Presence presence);
  // Sends all blobs to all ranks, and begins the next round.
  void EndRound();
  void Send(Session& session, const Frame& frame);
  // Discards the session's output, and marks the session to be closed.
  void Drop(Session& session);

  const RendezvousEnd self_;
  SessionId next_id_ = 1;
  std::map<SessionId, Session> sessions_;  // Older sessions first.
  int strangers_ = 0;
  std::vector<Member> members_;  // By rank.
  uint32_t round_ = 1;           // From 1, as kPublish frames count.
  int published_ = 0;            // Blobs of this round.
  int gone_rank_ = -1;           // The first rank that left or died.
  absl::Status failure_;
};

// One connection of one rank. Its requests are sent only after the server has
// proved that it knows the token.
class RendezvousClient {
 public:
  // Begins with the handshake.
  RendezvousClient(RendezvousEnd self, const Nonce& nonce);
  // Returns the client of rank 0, whose session needs no handshake.
  static RendezvousClient ForRankZero(RendezvousEnd self);

  // Whether the server has let this rank in.
  bool joined() const { return joined_; }
  // Returns "rank 0", with its pid if known.
  std::string ServerName() const;

  // Begins round `round`, counted from 1. outcome() holds its result.
  void Publish(uint32_t round, absl::string_view blob);
  // Fails the run. The server answers with the failure that came first.
  void Fail(const absl::Status& failure);
  // Asks the server to fail the run, because the deadline of the round has
  // passed.
  void GiveUp(absl::Duration timeout);
  // Leaves the run; the caller then closes the connection.
  void Leave();

  // Takes bytes that arrived over the connection.
  void Receive(absl::string_view bytes);

  // The blobs of the round by rank, or an error: the failure that the server
  // sent; kUnauthenticated if the two tokens differ; or FrameReader's error if
  // the server violates the protocol. nullopt until the round ends.
  const std::optional<absl::StatusOr<std::vector<std::string>>>& outcome()
      const {
    return outcome_;
  }

  // Returns the bytes to send next; "" for none.
  absl::string_view Output() const;
  // Marks `size` bytes of Output as sent.
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
  Frame join_;           // As sent.
  std::string waiting_;  // Requests made before the server proved the token.
  std::string output_;
  size_t sent_ = 0;  // Bytes of output_ that were sent.
  uint32_t round_ = 0;
  std::vector<std::string> results_;  // The blobs of this round so far.
  std::optional<absl::StatusOr<std::vector<std::string>>> outcome_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_SESSIONS_H_
