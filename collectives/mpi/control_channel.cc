#include "collectives/mpi/control_channel.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/process.h"
#include "collectives/group_options.h"
#include "collectives/mpi/mpi_runtime.h"

namespace lockstep {
namespace {

// A boot of a kernel, and a space of process numbers in it: containers of one
// host may each have their own.
std::string System() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char space[64] = {};
  if (readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0) {
    space[0] = '\0';
  }
  return boot + space;
}

template <size_t kSize>
void Copy(const std::string& from, std::array<char, kSize>& to) {
  std::copy_n(from.data(), std::min(from.size(), kSize - 1), to.data());
}

}  // namespace

MpiIntroduction IntroduceSelf(const GroupOptions& options) {
  MpiIntroduction self;
  self.process = ThisProcess();
  gethostname(self.host.data(), self.host.size() - 1);
  Copy(System(), self.system);
  self.slot_bytes = options.slot_bytes;
  self.algorithm = options.algorithm;
  return self;
}

ControlChannel::ControlChannel(MpiMembers members, int tag)
    : members_(std::move(members)), tag_(tag) {
  int processes = 0;
  MPI_Comm_size(members_.comm, &processes);
  rank_of_process_.assign(static_cast<size_t>(processes), -1);
  for (size_t rank = 0; rank < members_.processes.size(); ++rank) {
    rank_of_process_[members_.processes[rank]] = static_cast<int>(rank);
  }
  Receive();
}

void ControlChannel::Note(int code, const char* what) {
  error_.Update(MpiStatus(code, what));
}

void ControlChannel::Receive() {
  Note(MPI_Irecv(&incoming_, static_cast<int>(sizeof(incoming_)), MPI_BYTE,
                 MPI_ANY_SOURCE, tag_, members_.comm, &receive_),
       "MPI_Irecv");
}

bool ControlChannel::IsSent(Outgoing& outgoing) {
  int sent = 0;
  const int code =
      MPI_Testall(static_cast<int>(outgoing.requests.size()),
                  outgoing.requests.data(), &sent, MPI_STATUSES_IGNORE);
  return code == MPI_SUCCESS && sent != 0;
}

ControlChannel::Outgoing& ControlChannel::NextOutgoing() {
  for (const std::unique_ptr<Outgoing>& outgoing : outgoing_) {
    if (IsSent(*outgoing)) return *outgoing;
  }
  outgoing_.push_back(std::make_unique<Outgoing>());
  return *outgoing_.back();
}

void ControlChannel::Post(const ControlMessage& message,
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

// MPI may read the message for as long as it likes.
void ControlChannel::PostLeft() const {
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

void ControlChannel::Poll(
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

bool ControlChannel::IsIdle() {
  return std::all_of(outgoing_.begin(), outgoing_.end(),
                     [](const auto& outgoing) { return IsSent(*outgoing); });
}

void ControlChannel::Close() {
  if (receive_ != MPI_REQUEST_NULL) MPI_Cancel(&receive_);
}

bool ControlChannel::IsClosed() {
  int done = 1;
  if (receive_ != MPI_REQUEST_NULL) {
    MPI_Test(&receive_, &done, MPI_STATUS_IGNORE);
  }
  return done != 0;
}

}  // namespace lockstep
