// The control messages of a group, over MPI.
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

// The members of a group, in MPI's terms.
struct MpiMembers {
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<int> processes;  // Ranks in `comm`, by rank of the group.
  int rank = 0;                // This process's rank in the group.
};

// A ControlChannel over MPI. MPI keeps pointers into the channel until IsIdle()
// and, after Close(), IsClosed() return true.
class MpiChannel : public ControlChannel {
 public:
  // tag: no other channel that a member receives from may use it.
  MpiChannel(MpiMembers members, int tag);

  void Post(const ControlMessage& message, std::span<const int> peers) override;
  // Cost: one MPI_Test without a message.
  void Poll(
      absl::FunctionRef<void(int peer, const ControlMessage&)> take) override;
  void Idle(std::chrono::steady_clock::duration waited, bool may_spin,
            std::chrono::steady_clock::duration limit) override;
  // MPI does not report lost ranks.
  std::string Lost(int) const override { return ""; }
  std::string Obstacle(int) const override { return ""; }
  const absl::Status& error() const override { return error_; }

  // Sends kLeft to all other ranks. Never waits; thread safe.
  void PostLeft() const;

  bool IsIdle();  // Whether MPI has sent all messages.
  void Close();   // Stops receiving.
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
