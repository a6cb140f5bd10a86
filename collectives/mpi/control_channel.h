// What the ranks of an MPI group tell each other beside their data: who they
// are, what they call, that they are awake, fail or leave.
#ifndef LOCKSTEP_COLLECTIVES_MPI_CONTROL_CHANNEL_H_
#define LOCKSTEP_COLLECTIVES_MPI_CONTROL_CHANNEL_H_

#include <mpi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/process.h"
#include "collectives/group_options.h"

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

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_CONTROL_CHANNEL_H_
