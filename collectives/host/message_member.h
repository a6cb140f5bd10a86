// One rank's place in a group whose ranks share no memory: agreeing on calls,
// waiting, failing; and what the ranks tell each other for that, beside their
// data. The communicator on top of it.
#ifndef LOCKSTEP_COLLECTIVES_HOST_MESSAGE_MEMBER_H_
#define LOCKSTEP_COLLECTIVES_HOST_MESSAGE_MEMBER_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// Plain old data: it travels as bytes.
struct RankIntroduction {
  ProcessIdentity process;
  std::array<char, 64> host = {};     // Its name, for people.
  std::array<char, 128> system = {};  // Where process numbers mean the same.
  int64_t slot_bytes = 0;
  Algorithm algorithm = Algorithm::kAuto;
};

// Of this process, with the settings that it was given.
RankIntroduction IntroduceSelf(const GroupOptions& options);

// Error: kInvalidArgument for settings, rank 0's, that no group can have.
absl::Status CheckSettings(const RankIntroduction& first);

struct ControlMessage {
  enum class Kind : int32_t {
    kHello,    // Who the rank is, and its settings.
    kCall,     // It has begun call `number`, of all ranks. Body: a Call.
    kPartner,  // Its `number`-th call with the receiver alone. Body: a Call.
    kAwake,    // It waits for others.
    kFailure,  // The group has failed. An absl::StatusCode; body: the text.
    kLeft,     // It has left; this is its last message.
  };

  Kind kind = Kind::kAwake;
  uint32_t size = 0;  // Bytes of the body that travel.
  uint64_t number = 0;

  static constexpr size_t kMaxBody = 1000;
  std::array<char, kMaxBody> body;

  // Whether a message of this kind may have a body of so many bytes.
  static bool Allows(int32_t kind, uint32_t size);
};

// How control messages travel. Not thread safe. Messages of one rank come in
// the order in which they were sent.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;

  // Sends to `peers`, ranks of the group other than this one. Never waits.
  virtual void Post(const ControlMessage& message,
                    std::span<const int> peers) = 0;

  // Calls `take` for each message that has come. Never waits.
  virtual void Poll(
      absl::FunctionRef<void(int peer, const ControlMessage&)> take) = 0;

  // Gives the core away until something may have come, for `limit` at most.
  // waited: how long the caller has waited so far. may_spin: this host has a
  // core for each of its ranks.
  virtual void Idle(std::chrono::steady_clock::duration waited, bool may_spin,
                    std::chrono::steady_clock::duration limit) = 0;

  // What has become of a rank from which nothing more can come: "died"; ""
  // while it can, or where that is not known.
  virtual std::string Lost(int peer) const = 0;
  // What keeps a rank from being heard, for the error at the deadline, as a
  // phrase that begins with ": "; "" for nothing known.
  virtual std::string Obstacle(int peer) const = 0;

  // What the system below refused; OK for ever otherwise.
  virtual const absl::Status& error() const = 0;
};

// Agrees on calls as the host backends do (host/group_member.h), with the same
// words. Every rank sends its call to every other, so that any two ranks that
// disagree find out without a third, which may be late or stopped: P-1 small
// messages each way, and one step, for each call.
//
// Not thread safe: one thread at a time uses it. After any error that a method
// returns, the group has failed: the others get the same error, if they have
// not failed themselves, and Enter returns kFailedPrecondition from then on.
class MessageMember {
 public:
  // `channel` is borrowed.
  MessageMember(ControlChannel& channel, int rank, int world_size,
                absl::Duration timeout);

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(peers_.size()); }
  absl::Duration timeout() const { return timeout_; }

  // Comes before all else: returns once all ranks have introduced themselves.
  // parent: of a Split, the group that is split, which Look()s meanwhile.
  // Errors: WaitFor's; those of the parent's Look.
  absl::Status Introduce(const RankIntroduction& self,
                         MessageMember* parent = nullptr);
  // The same for ranks that know each other: by rank. Introduce may follow, to
  // return once all are there.
  void Know(std::vector<RankIntroduction> introductions);
  const std::vector<RankIntroduction>& introductions() const {
    return introductions_;
  }

  // The processes of this host, this one included.
  std::vector<ProcessIdentity> Neighbours() const;

  // Begins the next call: returns once every rank has begun it too and all
  // agree on it. Errors: kInvalidArgument if they do not, within 100 ms of two
  // being there that do not; and WaitFor's.
  absl::Status Enter(const Call& call);

  // As GroupMember's of these names.
  absl::Status EnterWithPartner(const Call& call);
  void LeavePartner() { with_partner_ = false; }
  absl::Status Refuse(const Call& call, absl::string_view why);

  // Returns once `ready` holds; it may look at what moves the data, and is
  // asked again and again. `send_peer` and `receive_peer` are the ranks whose
  // steps make it hold; -1: none. Errors: kUnavailable if a rank died, as far
  // as that is seen (of this host; of any where the channel tells), or one of
  // the two left; kDeadlineExceeded after the timeout; another rank's error.
  absl::Status WaitFor(int send_peer, int receive_peer,
                       absl::FunctionRef<bool()> ready);

  // For who waits elsewhere: tells the others that this rank is awake. Returns
  // what has befallen the group, if it knows.
  absl::Status Look();

  // Makes the group fail with `cause`, unless it already has, and returns the
  // first cause: of several at the same time, the lowest rank's. The message
  // should name this rank. Takes 50 ms.
  absl::Status Fail(const absl::Status& cause);

  bool has_failed() const { return !failure_.ok(); }

  // Whether every other rank has said that it is gone, after a look.
  bool AllHaveLeft();
  // Tells the others that this rank is gone. Nothing may follow but looking.
  void SayLeft();

 private:
  using Clock = std::chrono::steady_clock;

  struct Begun {
    uint64_t sequence = 0;
    Call call;
  };
  struct Peer {
    std::array<Begun, 2> calls;  // By parity of the sequence.
    Begun with_partner;          // With this rank alone.
    bool known = false;          // Its introduction is there.
    bool there = false;          // It has introduced itself.
    bool left = false;
    Clock::time_point heard;  // When its last message came.
  };

  // The ranks whose steps end a wait; -1: none.
  struct Awaited {
    int send_peer = -1;
    int receive_peer = -1;
    bool Has(int peer) const {
      return peer == send_peer || peer == receive_peer;
    }
  };

  absl::Status Begin(const Call& call);
  void Post(ControlMessage::Kind kind, uint64_t number, const void* body,
            size_t size, std::span<const int> peers);
  void Poll();
  void Take(int peer, const ControlMessage& message);
  void Tell(int teller, const absl::Status& cause);
  absl::Status Wait(const Awaited& awaited, absl::FunctionRef<bool()> ready);
  absl::Status Disagreement() const;
  absl::Status DisagreementWithPartner() const;
  bool HasReached(int peer) const;  // The call that is running.
  bool AllHave(absl::FunctionRef<bool(int)> holds) const;
  absl::Status LookForFailure(const Awaited& awaited) const;
  absl::Status LookForTrouble(const Awaited& awaited, absl::Duration waited);
  absl::Status LookForDead();
  bool IsNeighbour(int peer) const;  // On this host.
  // -1 if all have come.
  int LongestSilent(const Awaited& awaited) const;
  void SayAwake();
  std::string NameOf(int peer) const;
  std::string SeenBy() const;

  ControlChannel& channel_;
  MessageMember* parent_ = nullptr;  // While this one is introduced.
  const int rank_;
  const absl::Duration timeout_;
  std::vector<int> others_;
  std::vector<Peer> peers_;
  std::vector<RankIntroduction> introductions_;
  bool may_spin_ = false;
  uint64_t sequence_ = 0;  // Of the call that is running, or the last one.
  Call call_;
  bool with_partner_ = false;
  std::vector<uint64_t> partner_calls_;  // Begun, by partner.
  Clock::time_point spoke_;  // When it last told all others something.
  absl::Status told_;        // The cause, as the lowest rank tells it.
  int teller_ = 0;
  absl::Status failure_;
};

// A transport that may still hold what was sent when Send returns.
class MessageTransport : public Transport {
 public:
  // Returns once the system needs this rank no more to deliver what it has
  // sent; until then the receivers may depend on its coming back. Errors:
  // Wait's.
  virtual absl::Status Flush() = 0;
};

// The Communicator of a group by messages: what it does with a member and a
// transport, which its backend owns.
class MessageCommunicator : public Communicator {
 public:
  int rank() const override { return member().rank(); }
  int world_size() const override { return member().world_size(); }
  absl::Status Run(const Collective& call) override;
  // Plain memory of this process: ranks exchange messages, and do not reduce
  // from each other's memory.
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override;

 protected:
  // What a rank tells the others of a Split, besides color and key.
  using SplitOffer = std::array<char, 128>;

  virtual MessageMember& member() const = 0;
  virtual MessageTransport& transport() const = 0;
  virtual Algorithm algorithm() const = 0;
  virtual absl::StatusOr<SplitOffer> OfferForSplit() = 0;
  // The group of `ranks`, this one among them, in their new order; of none,
  // where this rank joins none: null. offers: by rank of this group. All ranks
  // come here, in the same call. Its error fails this group.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Subgroup(
      const std::vector<int>& ranks, std::span<const SplitOffer> offers) = 0;

  // Of `ranks`, with this group's settings, which hold whoever comes first.
  std::vector<RankIntroduction> IntroductionsOf(
      const std::vector<int>& ranks) const;

 private:
  absl::Status RunWithAll(const Collective& call);
  absl::Status RunWithPartner(const Collective& call);
  absl::Status Move(const Collective& call);
  absl::Status Finish(const absl::Status& status);
  absl::Status Enter(Operation operation, int64_t count, const CallSite& site);
  template <typename T>
  absl::StatusOr<std::vector<T>> AllOf(const T& mine);
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_MESSAGE_MEMBER_H_
