// The transport of ranks that MPI connects.
#ifndef LOCKSTEP_COLLECTIVES_MPI_MPI_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_MPI_MPI_TRANSPORT_H_

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/mpi/mpi_member.h"

namespace lockstep {

// Several pieces may be under way to and from each peer: sends wait for room
// with the receiver, which keeps as many receives posted. Memory for a peer is
// taken when it is first used: 2 * max_pieces() pieces. Borrows the member.
//
// MPI keeps pointers into it until IsIdle() and, after Close(), IsClosed()
// hold.
class MpiTransport : public Transport {
 public:
  MpiTransport(MpiMember& member, int64_t max_piece_bytes);
  ~MpiTransport() override;

  int rank() const override;
  int world_size() const override;
  int64_t max_piece_bytes() const override { return max_piece_bytes_; }
  int max_pieces() const override;
  std::optional<std::span<std::byte>> Room(int peer) override;
  void Send(int peer, int64_t size) override;
  std::optional<std::span<const std::byte>> Received(int peer) override;
  void Release(int peer) override;
  absl::Status Wait(int send_peer, int receive_peer) override;

  // Returns once MPI needs this rank no more to deliver what it has sent; until
  // then the receivers may depend on its coming back. Errors: as Wait's.
  absl::Status Flush();

  bool IsIdle();   // All that was sent is gone.
  void Discard();  // Throws away what the others send.
  void Close();    // Receives no more.
  bool IsClosed();

 private:
  struct Way;

  Way& To(int peer);
  std::byte* Memory(Way& way, int index) const;
  void Receive(Way& way, int peer, int index);
  static bool IsDone(MPI_Request& request);
  void Note(int code, const char* what);

  MpiMember& member_;
  const int64_t max_piece_bytes_;
  std::vector<std::unique_ptr<Way>> ways_;  // By peer; null: not used yet.
  absl::Status error_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_MPI_TRANSPORT_H_
