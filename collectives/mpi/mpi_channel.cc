#include "collectives/mpi/mpi_channel.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "collectives/host/message_member.h"
#include "collectives/mpi/mpi_runtime.h"

namespace lockstep {
namespace {

// Longer than a piece takes, so that a rank does not yield its core between
// pieces.
constexpr std::chrono::microseconds kSpinFor(500);

// The time after which a wait is expected to be long. Sleeping then costs
// little, and frees the core for the awaited ranks.
constexpr std::chrono::milliseconds kYieldFor(2);
constexpr std::chrono::microseconds kSleep(100);

}  // namespace

MpiChannel::MpiChannel(MpiMembers members, int tag)
    : members_(std::move(members)), tag_(tag) {
  int processes = 0;
  MPI_Comm_size(members_.comm, &processes);
  rank_of_process_.assign(static_cast<size_t>(processes), -1);
  for (size_t rank = 0; rank < members_.processes.size(); ++rank) {
    rank_of_process_[members_.processes[rank]] = static_cast<int>(rank);
  }
  Receive();
}

void MpiChannel::Note(int code, const char* what) {
  error_.Update(MpiStatus(code, what));
}

void MpiChannel::Receive() {
  Note(MPI_Irecv(&incoming_, static_cast<int>(sizeof(incoming_)), MPI_BYTE,
                 MPI_ANY_SOURCE, tag_, members_.comm, &receive_),
       "MPI_Irecv");
}

bool MpiChannel::IsSent(Outgoing& outgoing) {
  int sent = 0;
  const int code =
      MPI_Testall(static_cast<int>(outgoing.requests.size()),
                  outgoing.requests.data(), &sent, MPI_STATUSES_IGNORE);
  return code == MPI_SUCCESS && sent != 0;
}

MpiChannel::Outgoing& MpiChannel::NextOutgoing() {
  for (const std::unique_ptr<Outgoing>& outgoing : outgoing_) {
    if (IsSent(*outgoing)) return *outgoing;
  }
  outgoing_.push_back(std::make_unique<Outgoing>());
  return *outgoing_.back();
}

void MpiChannel::Post(const ControlMessage& message,
                      std::span<const int> peers) {
  Outgoing& outgoing = NextOutgoing();
  const size_t size = offsetof(ControlMessage, body) + message.size;
  std::copy_n(reinterpret_cast<const char*>(&message), size,
              reinterpret_cast<char*>(&outgoing.message));
  outgoing.requests.assign(peers.size(), MPI_REQUEST_NULL);
  for (size_t i = 0; i < peers.size(); ++i) {
    Note(MPI_Isend(&outgoing.message, static_cast<int>(size), MPI_BYTE,
                   members_.processes[peers[i]], tag_, members_.comm,
                   &outgoing.requests[i]),
         "MPI_Isend");
  }
}

// The message is static, because MPI may read it at any later time.
void MpiChannel::PostLeft() const {
  static const ControlMessage* const left =
      new ControlMessage{ControlMessage::Kind::kLeft, 0, 0, {}};
  for (size_t peer = 0; peer < members_.processes.size(); ++peer) {
    if (static_cast<int>(peer) == members_.rank) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(
        left, static_cast<int>(offsetof(ControlMessage, body)), MPI_BYTE,
        members_.processes[peer], tag_, members_.comm, &request);
    if (code == MPI_SUCCESS) MPI_Request_free(&request);
  }
}

void MpiChannel::Poll(
    absl::FunctionRef<void(int, const ControlMessage&)> take) {
  while (receive_ != MPI_REQUEST_NULL) {
    int came = 0;
    MPI_Status status = {};
    Note(MPI_Test(&receive_, &came, &status), "MPI_Test");
    if (came == 0 || !error_.ok()) return;
    take(rank_of_process_[status.MPI_SOURCE], incoming_);
    Receive();
  }
}

bool MpiChannel::IsIdle() {
  return std::all_of(outgoing_.begin(), outgoing_.end(),
                     [](const auto& outgoing) { return IsSent(*outgoing); });
}

void MpiChannel::Close() {
  if (receive_ != MPI_REQUEST_NULL) MPI_Cancel(&receive_);
}

bool MpiChannel::IsClosed() {
  int done = 1;
  if (receive_ != MPI_REQUEST_NULL) {
    MPI_Test(&receive_, &done, MPI_STATUS_IGNORE);
  }
  return done != 0;
}

void MpiChannel::Idle(std::chrono::steady_clock::duration waited, bool may_spin,
                      std::chrono::steady_clock::duration) {
  if (may_spin && waited < kSpinFor) return;
  if (waited < kYieldFor) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(kSleep);
  }
}

}  // namespace lockstep
