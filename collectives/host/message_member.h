// One rank's membership in a group whose ranks share no memory. The member
// agrees on calls, waits and fails by control messages, which are separate from
// the data. A communicator uses it.
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
#include "collectives/agreement/agreement.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// A rank's description of itself. Plain old data, because it is sent as bytes.
struct RankIntroduction {
  ProcessIdentity process;
  std::array<char, 64> host = {};     // The host's name, for people.
  std::array<char, 128> system = {};  // The space of its process numbers.
  int64_t slot_bytes = 0;
  Algorithm algorithm = Algorithm::kAuto;
};

// Returns the introduction of this process, with `options` as its settings.
RankIntroduction IntroduceSelf(const GroupOptions& options);

// Returns kInvalidArgument if rank 0's settings are not valid for a group.
absl::Status CheckSettings(const RankIntroduction& first);

struct ControlMessage {
  enum class Kind : int32_t {
    kHello,    // The rank's identity and its settings.
    kCall,     // It has begun call `number` of all ranks. Body: a Call.
    kPartner,  // Its `number`-th call with the receiver alone. Body: a Call.
    kAwake,    // It waits for others.
    kFailure,  // The group has failed. An absl::StatusCode; body: the text.
    kLeft,     // It has left; this is its last message.
  };

  Kind kind = Kind::kAwake;
  uint32_t size = 0;  // Bytes of the body that are sent.
  uint64_t number = 0;

  static constexpr size_t kMaxBody = 1000;
  std::array<char, kMaxBody> body;

  // Returns whether a message of this kind may have a body of `size` bytes.
  static bool Allows(int32_t kind, uint32_t size);
};

// A channel for control messages. Not thread safe. Messages of one rank arrive
// in the order in which they were sent.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;

  // Sends to `peers`, other ranks of the group. Never waits.
  virtual void Post(const ControlMessage& message,
                    std::span<const int> peers) = 0;

  // Calls `take` for each message that has arrived. Never waits.
  virtual void Poll(
      absl::FunctionRef<void(int peer, const ControlMessage&)> take) = 0;

  // Yields the core until a message may have arrived, for `limit` at most.
  // waited: the time that the caller has waited so far. may_spin: this host has
  // a core for each of its ranks.
  virtual void Idle(std::chrono::steady_clock::duration waited, bool may_spin,
                    std::chrono::steady_clock::duration limit) = 0;

  // Returns the state of a rank that can send no more messages, for example
  // "died". Returns "" while the rank can send, or if its state is not known.
  virtual std::string Lost(int peer) const = 0;
  // Returns the reason why a rank is not heard from, for the error at the
  // deadline. It is a phrase that begins with ": ", or "" if no reason is
  // known.
  virtual std::string Obstacle(int peer) const = 0;

  // Returns the first error of the underlying system, or OK.
  virtual const absl::Status& error() const = 0;
};

// Agrees on calls as the host backends do (host/group_member.h), with the same
// error texts. Every rank sends its call to every other rank. Any two ranks
// that disagree thus find out without a third, which may be late or stopped.
// Cost of a call: P-1 small messages each way, and one step.
//
// Not thread safe: one thread at a time uses it. After a method returns an
// error, the group has failed. The other ranks get the same error, unless they
// have already failed, and Enter returns kFailedPrecondition from then on.
class MessageMember {
 public:
  // Borrows `channel`.
  MessageMember(ControlChannel& channel, int rank, int world_size,
                absl::Duration timeout);

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(peers_.size()); }
  absl::Duration timeout() const { return timeout_; }

  // Introduces this rank; must be the first call. Returns once all ranks have
  // introduced themselves. parent: in a Split, the group that is split;
  // Introduce calls its Look() while it waits. Errors: WaitFor's; those of the
  // parent's Look.
  absl::Status Introduce(const RankIntroduction& self,
                         MessageMember* parent = nullptr);
  // Takes introductions by rank, for ranks that know each other already. A
  // later Introduce returns once all ranks have come.
  void SetIntroductions(std::vector<RankIntroduction> introductions);
  const std::vector<RankIntroduction>& introductions() const {
    return introductions_;
  }

  // Returns the processes of this host, this one included.
  std::vector<ProcessIdentity> Neighbours() const;

  // Begins the next call. Returns once every rank has begun it and all agree on
  // it. Errors: kInvalidArgument if two ranks disagree, within 100 ms of the
  // second one's call; and WaitFor's.
  absl::Status Enter(const Call& call);

  // The methods below are like GroupMember's of the same names.
  absl::Status EnterWithPartner(const Call& call);
  void LeavePartner() { with_partner_ = false; }
  absl::Status Refuse(const Call& call, absl::string_view why);

  // Returns once `ready` returns true. `ready` may poll the transport that
  // moves the data; WaitFor calls it repeatedly. `send_peer` and `receive_peer`
  // are the ranks that `ready` depends on; -1: none.
  //
  // Errors: kUnavailable if one of the two left, or if a rank died and this
  // rank can see it (on this host, or on any host if the channel reports it);
  // kDeadlineExceeded after the timeout; another rank's error.
  absl::Status WaitFor(int send_peer, int receive_peer,
                       absl::FunctionRef<bool()> ready);

  // Tells the others that this rank is awake, while it waits elsewhere. Returns
  // the group's error, if this rank knows of one.
  absl::Status Look();

  // Makes the group fail with `cause`, unless it already has. Returns the first
  // cause; if several ranks fail at the same time, the lowest rank's. The
  // message should name this rank. Takes 50 ms.
  absl::Status Fail(const absl::Status& cause);

  bool has_failed() const { return !failure_.ok(); }

  // Polls the channel. Returns whether every other rank has said that it left.
  bool HaveAllLeft();
  // Tells the others that this rank has left. Only HaveAllLeft may follow.
  void AnnounceLeaving();

 private:
  using Clock = std::chrono::steady_clock;

  struct Begun {
    uint64_t sequence = 0;
    Call call;
  };
  struct Peer {
    std::array<Begun, 2> calls;  // By parity of the sequence.
    Begun with_partner;          // In a call with this rank alone.
    bool known = false;          // Its introduction has arrived.
    bool there = false;          // It has introduced itself.
    bool left = false;
    Clock::time_point heard;  // The arrival of its last message.
  };

  // The ranks that a wait depends on; -1: none.
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
  bool HasReached(int peer) const;  // The running call.
  bool AllOthersSatisfy(absl::FunctionRef<bool(int)> holds) const;
  absl::Status LookForFailure(const Awaited& awaited);
  absl::Status LookForTrouble(const Awaited& awaited, absl::Duration waited);
  absl::Status LookForDead(const Awaited& awaited);
  bool IsNeighbour(int peer) const;  // Whether it is on this host.
  void UpdateFacts(const Awaited& awaited);
  // how: what happened to a lost rank, such as "died"; if empty, the channel
  // says it.
  absl::Status ErrorOfGone(absl::string_view how) const;
  // Returns the rank that holds this one up; -1 if all have come.
  int LateRank(const Awaited& awaited);
  void AnnounceAwake();
  std::string NameOf(int peer) const;
  Witness AsWitness() const;
  bool is_joining() const { return sequence_ == 0 && !with_partner_; }

  ControlChannel& channel_;
  MessageMember* parent_ = nullptr;  // Set while Introduce runs.
  const int rank_;
  const absl::Duration timeout_;
  std::vector<int> others_;
  std::vector<Peer> peers_;
  std::vector<RankIntroduction> introductions_;
  bool may_spin_ = false;
  uint64_t sequence_ = 0;  // The running call, or the last one.
  Call call_;
  bool with_partner_ = false;
  std::vector<uint64_t> partner_calls_;  // The calls begun, by partner.
  std::vector<RankFacts> facts_;         // By rank; see UpdateFacts.
  Clock::time_point spoke_;   // The time of its last message to all others.
  absl::Status first_cause_;  // The cause from the lowest rank so far.
  int first_cause_rank_ = 0;
  absl::Status failure_;
};

// A transport that may still hold sent data when Send returns.
class MessageTransport : public Transport {
 public:
  // Returns once the system can deliver everything that this rank has sent
  // without this rank. Until then the receivers may need it to call again.
  // Errors: Wait's.
  virtual absl::Status Flush() = 0;
};

// The Communicator of a group by messages, over a member and a transport that
// its backend owns.
class MessageCommunicator : public Communicator {
 public:
  int rank() const override { return member().rank(); }
  int world_size() const override { return member().world_size(); }
  absl::Status Run(const Collective& call) override;
  // Allocates plain memory of this process, because ranks exchange messages and
  // do not reduce from each other's memory.
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override;

 protected:
  // The data of a Split that a rank gives the others, besides color and key.
  using SplitOffer = std::array<char, 128>;

  virtual MessageMember& member() const = 0;
  virtual MessageTransport& transport() const = 0;
  virtual Algorithm algorithm() const = 0;
  virtual absl::StatusOr<SplitOffer> OfferForSplit() = 0;
  // Returns the group of `ranks`, in their new order; this rank is one of them.
  // Returns null for no ranks, when this rank joins no group. offers: by rank
  // of this group. All ranks call Subgroup, in the same call. An error fails
  // this group.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Subgroup(
      const std::vector<int>& ranks, std::span<const SplitOffer> offers) = 0;

  // Returns the introductions of `ranks`, all with this group's settings.
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
