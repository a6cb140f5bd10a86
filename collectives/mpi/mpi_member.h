// One rank's place in an MPI group: agreeing on calls, waiting, failing; and
// what the ranks tell each other for that, beside their data.
#ifndef LOCKSTEP_COLLECTIVES_MPI_MPI_MEMBER_H_
#define LOCKSTEP_COLLECTIVES_MPI_MPI_MEMBER_H_

#include <mpi.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// Plain old data: it travels as bytes.
struct MpiIntroduction {
  ProcessIdentity process;
  std::array<char, 64> host = {};     // Its name, for people.
  std::array<char, 128> system = {};  // Where process numbers mean the same.
  int64_t slot_bytes = 0;
  Algorithm algorithm = Algorithm::kAuto;
};

// Of this process, with the settings that it was given.
MpiIntroduction IntroduceSelf(const GroupOptions& options);

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
};

// The members of a group, as MPI knows them.
struct MpiMembers {
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<int> processes;  // Ranks in `comm`, by rank of the group.
  int rank = 0;                // This process's, in the group.
};

// Not thread safe. Messages of one rank come in the order in which they were
// sent. MPI keeps pointers into it until IsIdle() and, after Close(),
// IsClosed() hold.
class ControlChannel {
 public:
  // `tag`: of no other channel that a member receives from.
  ControlChannel(MpiMembers members, int tag);

  // Sends to `peers`, ranks of the group other than this one. Never waits.
  void Post(const ControlMessage& message, std::span<const int> peers);

  // Sends kLeft to all other ranks. Never waits; thread safe.
  void PostLeft() const;

  // Calls `take` for each message that has come. Cost: without one, a look.
  void Poll(absl::FunctionRef<void(int peer, const ControlMessage&)> take);

  // What MPI refused; OK for ever otherwise.
  const absl::Status& error() const { return error_; }

  bool IsIdle();  // MPI has taken all that was posted.
  void Close();   // Receives no more.
  bool IsClosed();

 private:
  struct Outgoing {
    ControlMessage message;
    std::vector<MPI_Request> requests;
  };

  static bool IsSent(Outgoing& outgoing);
  Outgoing& NextOutgoing();
  void Receive();
  void Note(int code, const char* what);

  const MpiMembers members_;
  const int tag_;
  std::vector<int> rank_of_process_;  // -1: not a member.
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  ControlMessage incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  absl::Status error_;
};

// Agrees on calls as the host backends do (host/group_member.h), with the same
// words. Every rank sends its call to every other, so that any two ranks that
// disagree find out without a third, which may be late or stopped: P-1 small
// messages each way, and one step, for each call.
//
// Not thread safe: one thread at a time uses it. After any error that a method
// returns, the group has failed: the others get the same error, if they have
// not failed themselves, and Enter returns kFailedPrecondition from then on.
class MpiMember {
 public:
  // first_tag: and first_tag + 1, of no other group that has a member in
  // common.
  MpiMember(MpiMembers members, int first_tag, absl::Duration timeout);

  int rank() const { return members_.rank; }
  int world_size() const { return static_cast<int>(members_.processes.size()); }
  const MpiMembers& members() const { return members_; }
  int piece_tag() const { return first_tag_ + 1; }

  // Comes before all else: returns once all ranks have introduced themselves.
  // Errors: WaitFor's.
  absl::Status Introduce(const MpiIntroduction& self);
  // The same for ranks that know each other: by rank.
  void Know(std::vector<MpiIntroduction> introductions);
  const std::vector<MpiIntroduction>& introductions() const {
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

  // Returns once `ready` holds; it may look at MPI, and is asked again and
  // again. `send_peer` and `receive_peer` are the ranks whose steps make it
  // hold; -1: none. Errors: kUnavailable if a rank of this host died or one of
  // the two left; kDeadlineExceeded after the timeout; another rank's error.
  absl::Status WaitFor(int send_peer, int receive_peer,
                       absl::FunctionRef<bool()> ready);

  // Makes the group fail with `cause`, unless it already has, and returns the
  // first cause: of several at the same time, the lowest rank's. The message
  // should name this rank. Takes 50 ms.
  absl::Status Fail(const absl::Status& cause);

  bool has_failed() const { return !failure_.ok(); }

  // Tells the others that this rank is gone; may be called while another thread
  // is in a method. What comes after it: look until all have left and nothing
  // is under way, close, and look until closed.
  void Leave() const { control_.PostLeft(); }
  bool AllHaveLeft();
  bool IsIdle() { return control_.IsIdle(); }
  void Close() { control_.Close(); }
  bool IsClosed() { return control_.IsClosed(); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Begun {
    uint64_t sequence = 0;
    Call call;
  };
  struct Peer {
    std::array<Begun, 2> calls;  // By parity of the sequence.
    Begun with_partner;          // With this rank alone.
    bool introduced = false;
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
  void Idle(Clock::duration waited) const;
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

  const MpiMembers members_;
  const int first_tag_;
  const absl::Duration timeout_;
  ControlChannel control_;
  std::vector<int> others_;
  std::vector<Peer> peers_;
  std::vector<MpiIntroduction> introductions_;
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

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_MPI_MEMBER_H_
