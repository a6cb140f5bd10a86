#include "collectives/mpi/mpi_transport.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/algorithms/transport.h"
#include "collectives/mpi/mpi_member.h"
#include "collectives/mpi/mpi_runtime.h"

namespace lockstep {
namespace {

// Two keep both sides busy; two more let a rank that is off its core for a
// while not stop the others.
constexpr int kPieces = 4;

constexpr std::align_val_t kAlignment{64};

struct AlignedDelete {
  void operator()(std::byte* memory) const {
    ::operator delete[](memory, kAlignment);
  }
};

std::array<MPI_Request, kPieces> NoRequests() {
  std::array<MPI_Request, kPieces> requests;
  requests.fill(MPI_REQUEST_NULL);
  return requests;
}

}  // namespace

// The pieces to and from one peer. Piece i is in slot i % kPieces.
struct MpiTransport::Way {
  std::unique_ptr<std::byte[], AlignedDelete> memory;  // Sent, then received.
  std::array<MPI_Request, kPieces> sends = NoRequests();
  std::array<MPI_Request, kPieces> receives = NoRequests();
  int64_t sent = 0;
  int64_t released = 0;
  std::optional<int> size;  // Of piece `released`, once it is there.
};

MpiTransport::MpiTransport(MpiMember& member, int64_t max_piece_bytes)
    : member_(member),
      max_piece_bytes_(max_piece_bytes),
      ways_(member.world_size()) {}

MpiTransport::~MpiTransport() = default;

int MpiTransport::rank() const { return member_.rank(); }
int MpiTransport::world_size() const { return member_.world_size(); }
int MpiTransport::max_pieces() const { return kPieces; }

void MpiTransport::Note(int code, const char* what) {
  error_.Update(MpiStatus(code, what));
}

bool MpiTransport::IsDone(MPI_Request& request) {
  if (request == MPI_REQUEST_NULL) return true;
  int done = 0;
  MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  return done != 0;
}

MpiTransport::Way& MpiTransport::To(int peer) {
  std::unique_ptr<Way>& way = ways_[peer];
  if (way == nullptr) {
    way = std::make_unique<Way>();
    way->memory.reset(
        new (kAlignment)
            std::byte[static_cast<size_t>(2 * kPieces * max_piece_bytes_)]);
    for (int i = 0; i < kPieces; ++i) Receive(*way, peer, i);
  }
  return *way;
}

// Sends have the first kPieces slots, receives the others.
std::byte* MpiTransport::Memory(Way& way, int index) const {
  return way.memory.get() + index * max_piece_bytes_;
}

void MpiTransport::Receive(Way& way, int peer, int index) {
  const MpiMembers& members = member_.members();
  Note(MPI_Irecv(Memory(way, kPieces + index),
                 static_cast<int>(max_piece_bytes_), MPI_BYTE,
                 members.processes[peer], member_.piece_tag(), members.comm,
                 &way.receives[index]),
       "MPI_Irecv");
}

std::optional<std::span<std::byte>> MpiTransport::Room(int peer) {
  Way& way = To(peer);
  const int index = static_cast<int>(way.sent % kPieces);
  if (!IsDone(way.sends[index])) return std::nullopt;
  return std::span<std::byte>(Memory(way, index),
                              static_cast<size_t>(max_piece_bytes_));
}

void MpiTransport::Send(int peer, int64_t size) {
  Way& way = To(peer);
  const int index = static_cast<int>(way.sent++ % kPieces);
  const MpiMembers& members = member_.members();
  Note(MPI_Isend(Memory(way, index), static_cast<int>(size), MPI_BYTE,
                 members.processes[peer], member_.piece_tag(), members.comm,
                 &way.sends[index]),
       "MPI_Isend");
}

std::optional<std::span<const std::byte>> MpiTransport::Received(int peer) {
  Way& way = To(peer);
  const int index = static_cast<int>(way.released % kPieces);
  if (!way.size.has_value()) {
    int came = 0;
    MPI_Status status = {};
    Note(MPI_Test(&way.receives[index], &came, &status), "MPI_Test");
    if (came == 0 || !error_.ok()) return std::nullopt;
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    way.size = size;
  }
  return std::span<const std::byte>(Memory(way, kPieces + index),
                                    static_cast<size_t>(*way.size));
}

void MpiTransport::Release(int peer) {
  Way& way = To(peer);
  way.size.reset();
  Receive(way, peer, static_cast<int>(way.released++ % kPieces));
}

absl::Status MpiTransport::Wait(int send_peer, int receive_peer) {
  LOCKSTEP_RETURN_IF_ERROR(member_.WaitFor(send_peer, receive_peer, [&] {
    return (send_peer != kNobody && Room(send_peer).has_value()) ||
           (receive_peer != kNobody && Received(receive_peer).has_value()) ||
           !error_.ok();
  }));
  return error_.ok() ? error_ : member_.Fail(error_);
}

absl::Status MpiTransport::Flush() {
  return member_.WaitFor(kNobody, kNobody, [this] { return IsIdle(); });
}

bool MpiTransport::IsIdle() {
  for (const std::unique_ptr<Way>& way : ways_) {
    if (way != nullptr && !std::all_of(way->sends.begin(), way->sends.end(),
                                       &MpiTransport::IsDone)) {
      return false;
    }
  }
  return true;
}

void MpiTransport::Discard() {
  const MpiMembers& members = member_.members();
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank() || !error_.ok()) continue;
    int waits = 0;
    Note(MPI_Iprobe(members.processes[peer], member_.piece_tag(), members.comm,
                    &waits, MPI_STATUS_IGNORE),
         "MPI_Iprobe");
    if (waits == 0 && ways_[peer] == nullptr) continue;
    while (Received(peer).has_value()) Release(peer);
  }
}

void MpiTransport::Close() {
  for (const std::unique_ptr<Way>& way : ways_) {
    if (way == nullptr) continue;
    for (MPI_Request& receive : way->receives) {
      if (receive != MPI_REQUEST_NULL) MPI_Cancel(&receive);
    }
  }
}

bool MpiTransport::IsClosed() {
  return std::all_of(ways_.begin(), ways_.end(), [](const auto& way) {
    return way == nullptr ||
           std::all_of(way->receives.begin(), way->receives.end(),
                       &MpiTransport::IsDone);
  });
}

}  // namespace lockstep
