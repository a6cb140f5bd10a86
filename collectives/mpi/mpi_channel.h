// How the control messages of a group travel over MPI.
#ifndef LOCKSTEP_COLLECTIVES_MPI_MPI_CHANNEL_H_
#define LOCKSTEP_COLLECTIVES_MPI_MPI_CHANNEL_H_

#include <mpi.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "collectives/host/message_member.h"

namespace lockstep {

// The members of a group, as MPI knows them.
struct MpiMembers {
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<int> processes;  // Ranks in `comm`, by rank of the group.
  int rank = 0;                // This process's, in the group.
};

// MPI keeps pointers into it until IsIdle() and, after Close(), IsClosed()
// hold.
class MpiChannel : public ControlChannel {
 public:
  // `tag`: of no other channel that a member receives from.
  MpiChannel(MpiMembers members, int tag);

  void Post(const ControlMessage& message, std::span<const int> peers) override;
  // Cost: without a message, a look.
  void Poll(
      absl::FunctionRef<void(int peer, const ControlMessage&)> take) override;
  void Idle(std::chrono::steady_clock::duration waited, bool may_spin,
            std::chrono::steady_clock::duration limit) override;
  // MPI does not tell.
  std::string Lost(int) const override { return ""; }
  std::string Obstacle(int) const override { return ""; }
  const absl::Status& error() const override { return error_; }

  // Sends kLeft to all other ranks. Never waits; thread safe.
  void PostLeft() const;

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

#endif  // LOCKSTEP_COLLECTIVES_MPI_MPI_CHANNEL_H_
