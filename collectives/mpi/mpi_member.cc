#include "collectives/mpi/mpi_member.h"

#include <mpi.h>
#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
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

using Kind = ControlMessage::Kind;

// How often a rank that waits looks for what went wrong. Each look reads a file
// of /proc for every rank of this host; a dead rank is to be named within some
// 100 ms.
constexpr std::chrono::milliseconds kLookEvery(20);

// A rank that knows of two calls that differ waits this long for the calls of
// the other ranks, so that all name the same two.
constexpr absl::Duration kDisagreementPatience = absl::Milliseconds(100);

// A rank that fails listens this long for ranks that failed at the same time:
// then all of them return the words of the lowest one (Tell).
constexpr std::chrono::milliseconds kSettle(50);

// Longer than a piece takes, so that the core is not given away between pieces.
constexpr std::chrono::microseconds kSpinFor(500);

// After a while a wait will be long: sleeping then costs little, and the core
// is free for those that are waited for.
constexpr std::chrono::milliseconds kYieldFor(2);
constexpr std::chrono::microseconds kSleep(100);

}  // namespace

MpiIntroduction IntroduceSelf(const GroupOptions& options) {
  MpiIntroduction self;
  self.process = ThisProcess();
  gethostname(self.host.data(), self.host.size() - 1);
  const std::string system = System();
  std::copy_n(system.data(), std::min(system.size(), self.system.size() - 1),
              self.system.data());
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

MpiMember::MpiMember(MpiMembers members, int first_tag, absl::Duration timeout)
    : members_(std::move(members)),
      first_tag_(first_tag),
      timeout_(timeout),
      control_(members_, first_tag),
      peers_(members_.processes.size()),
      introductions_(members_.processes.size()),
      partner_calls_(members_.processes.size()),
      spoke_(Clock::now()) {
  for (int peer = 0; peer < world_size(); ++peer) {
    peers_[peer].heard = spoke_;
    if (peer != rank()) others_.push_back(peer);
  }
}

absl::Status MpiMember::Introduce(const MpiIntroduction& self) {
  peers_[rank()].introduced = true;
  introductions_[rank()] = self;
  Post(Kind::kHello, 0, &self, sizeof(self), others_);
  LOCKSTEP_RETURN_IF_ERROR(Wait({}, [this] {
    return AllHave([this](int peer) { return peers_[peer].introduced; });
  }));
  Know(introductions_);
  return absl::OkStatus();
}

// Spinning on a core that an awaited rank needs would only delay it.
void MpiMember::Know(std::vector<MpiIntroduction> introductions) {
  introductions_ = std::move(introductions);
  for (Peer& peer : peers_) peer.introduced = true;
  std::vector<pid_t> pids;
  for (const ProcessIdentity& process : Neighbours()) {
    pids.push_back(process.pid);
  }
  may_spin_ = static_cast<int>(pids.size()) <= UsableCores(pids);
}

std::vector<ProcessIdentity> MpiMember::Neighbours() const {
  std::vector<ProcessIdentity> neighbours;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (IsNeighbour(peer)) neighbours.push_back(introductions_[peer].process);
  }
  return neighbours;
}

bool MpiMember::IsNeighbour(int peer) const {
  return peers_[peer].introduced &&
         introductions_[peer].system == introductions_[rank()].system;
}

void MpiMember::Post(Kind kind, uint64_t number, const void* body, size_t size,
                     std::span<const int> peers) {
  ControlMessage message;
  message.kind = kind;
  message.number = number;
  message.size = std::min(size, ControlMessage::kMaxBody);
  if (size > 0) std::memcpy(message.body.data(), body, message.size);
  control_.Post(message, peers);
  if (peers.size() == others_.size()) spoke_ = Clock::now();
}

void MpiMember::Poll() {
  control_.Poll(
      [this](int peer, const ControlMessage& message) { Take(peer, message); });
}

void MpiMember::Take(int peer, const ControlMessage& message) {
  Peer& sender = peers_[peer];
  sender.heard = Clock::now();
  Begun begun{message.number, {}};
  switch (message.kind) {
    case Kind::kHello:
      std::memcpy(&introductions_[peer], message.body.data(),
                  sizeof(MpiIntroduction));
      sender.introduced = true;
      break;
    case Kind::kCall:
      std::memcpy(&begun.call, message.body.data(), sizeof(Call));
      sender.calls[message.number % 2] = begun;
      break;
    case Kind::kPartner:
      std::memcpy(&begun.call, message.body.data(), sizeof(Call));
      sender.with_partner = begun;
      break;
    case Kind::kAwake:
      break;
    case Kind::kFailure:
      Tell(peer,
           absl::Status(static_cast<absl::StatusCode>(message.number),
                        absl::string_view(message.body.data(), message.size)));
      break;
    case Kind::kLeft:
      sender.left = true;
      break;
  }
}

absl::Status MpiMember::Begin(const Call& call) {
  if (!failure_.ok()) {
    return CallAfterFailure(rank(), call, failure_);
  }
  call_ = call;
  Poll();
  return told_.ok() ? told_ : Fail(told_);
}

absl::Status MpiMember::Enter(const Call& call) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(call));
  ++sequence_;
  peers_[rank()].calls[sequence_ % 2] = {sequence_, call};
  Post(Kind::kCall, sequence_, &call, sizeof(call), others_);
  LOCKSTEP_RETURN_IF_ERROR(Wait({}, [this] {
    return AllHave([this](int peer) { return HasReached(peer); });
  }));
  const absl::Status agreement = Disagreement();
  return agreement.ok() ? agreement : Fail(agreement);
}

absl::Status MpiMember::EnterWithPartner(const Call& call) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(call));
  with_partner_ = true;
  Post(Kind::kPartner, ++partner_calls_[call.peer], &call, sizeof(call),
       std::span(&call.peer, 1));
  return absl::OkStatus();
}

// Two slots do: Enter returns once all ranks have begun the call, so none is
// more than one call ahead of another.
bool MpiMember::HasReached(int peer) const {
  return peers_[peer].calls[sequence_ % 2].sequence == sequence_;
}

bool MpiMember::AllHave(absl::FunctionRef<bool(int)> holds) const {
  return std::all_of(others_.begin(), others_.end(), holds);
}

// Among the ranks that have reached the running call.
absl::Status MpiMember::Disagreement() const {
  const auto call_of = [this](int peer) -> const Call& {
    return peers_[peer].calls[sequence_ % 2].call;
  };
  int first = -1;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (!HasReached(peer)) continue;
    if (first < 0) first = peer;
    if (Agree(call_of(first), call_of(peer))) continue;
    return CallsDiffer(absl::StrCat("ranks disagree on call ", sequence_),
                       first, call_of(first), peer, call_of(peer));
  }
  return absl::OkStatus();
}

// Whether one of two ranks is in a call of the two (Send, Receive) and waits
// for the other, which is in a call of all ranks and waits for the first:
// neither call can end. Either of the two ranks may be this one.
absl::Status MpiMember::DisagreementWithPartner() const {
  if (with_partner_) {
    const Begun& next = peers_[call_.peer].calls[(sequence_ + 1) % 2];
    if (next.sequence != sequence_ + 1) return absl::OkStatus();
    return CallsDiffer("ranks disagree", rank(), call_, call_.peer, next.call);
  }
  for (const int peer : others_) {
    const Begun& alone = peers_[peer].with_partner;
    if (HasReached(peer) || alone.sequence <= partner_calls_[peer]) {
      continue;  // It does not wait for this rank, or for what it has done.
    }
    return CallsDiffer("ranks disagree", rank(), call_, peer, alone.call);
  }
  return absl::OkStatus();
}

absl::Status MpiMember::WaitFor(int send_peer, int receive_peer,
                                absl::FunctionRef<bool()> ready) {
  return ready() ? absl::OkStatus() : Wait({send_peer, receive_peer}, ready);
}

absl::Status MpiMember::Wait(const Awaited& awaited,
                             absl::FunctionRef<bool()> ready) {
  const Clock::time_point start = Clock::now();
  Clock::time_point next_look = start + kLookEvery;
  while (true) {
    Poll();
    if (ready()) return absl::OkStatus();
    const Clock::time_point now = Clock::now();
    absl::Status trouble = LookForFailure(awaited);
    if (trouble.ok() && now >= next_look) {
      trouble = LookForTrouble(awaited, absl::FromChrono(now - start));
      next_look = now + kLookEvery;
    }
    // A peer may have died or left after the step that was waited for.
    if (!trouble.ok()) return ready() ? absl::OkStatus() : Fail(trouble);
    Idle(now - start);
  }
}

void MpiMember::Idle(Clock::duration waited) const {
  if (may_spin_ && waited < kSpinFor) return;
  if (waited < kYieldFor) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(kSleep);
  }
}

absl::Status MpiMember::LookForFailure(const Awaited& awaited) const {
  if (!told_.ok()) return told_;
  if (!control_.error().ok()) return control_.error();
  for (const int peer : others_) {
    const bool lacks = !with_partner_ && !HasReached(peer);
    if (peers_[peer].left && (lacks || awaited.Has(peer))) {
      return absl::UnavailableError(
          absl::StrCat(NameOf(peer), " left the group", SeenBy()));
    }
  }
  return absl::OkStatus();
}

absl::Status MpiMember::LookForTrouble(const Awaited& awaited,
                                       absl::Duration waited) {
  LOCKSTEP_RETURN_IF_ERROR(DisagreementWithPartner());
  if (!with_partner_ && waited >= kDisagreementPatience) {
    LOCKSTEP_RETURN_IF_ERROR(Disagreement());
  }
  LOCKSTEP_RETURN_IF_ERROR(LookForDead());
  SayAwake();
  if (waited < timeout_) return absl::OkStatus();
  const int silent = LongestSilent(awaited);
  return absl::DeadlineExceededError(absl::StrCat(
      silent < 0 ? "what MPI had to deliver" : NameOf(silent),
      " did not come within ", absl::FormatDuration(timeout_), SeenBy()));
}

// Only on this host, whose kernel can be asked. A rank that dies on another one
// is silent, and is named at the deadline.
absl::Status MpiMember::LookForDead() {
  for (const int peer : others_) {
    if (!IsNeighbour(peer) || peers_[peer].left ||
        IsAlive(introductions_[peer].process)) {
      continue;
    }
    Poll();  // Who ended after it left did so in good order.
    if (peers_[peer].left || !told_.ok()) continue;
    return absl::UnavailableError(
        absl::StrCat(NameOf(peer), " died", SeenBy()));
  }
  return absl::OkStatus();
}

// Ranks that wait say so, several times within a timeout, so that LongestSilent
// can tell them from the rank that they wait for.
void MpiMember::SayAwake() {
  const absl::Duration silent = absl::FromChrono(Clock::now() - spoke_);
  if (silent >= timeout_ / 8) Post(Kind::kAwake, 0, nullptr, 0, others_);
}

// A rank that waits is heard from, so the one that holds the others up is
// silent: the rank that this one waits for, or one that that rank waits for.
int MpiMember::LongestSilent(const Awaited& awaited) const {
  if (with_partner_) return call_.peer;
  const bool all_reached =
      AllHave([this](int peer) { return HasReached(peer); });
  int longest = -1;
  for (const int peer : others_) {
    if (!all_reached && HasReached(peer)) continue;
    if (sequence_ == 0 && peers_[peer].introduced) continue;
    const absl::Duration silent =
        absl::FromChrono(Clock::now() - peers_[peer].heard);
    if (awaited.Has(peer) && silent > timeout_ / 2) return peer;
    if (longest < 0 || peers_[peer].heard < peers_[longest].heard) {
      longest = peer;
    }
  }
  return longest;
}

absl::Status MpiMember::Refuse(const Call& call, absl::string_view why) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(call));
  return Fail(CallRefused(rank(), call, why));
}

// Ranks may find the same trouble at the same time, each in its own words: then
// those of the lowest rank hold.
void MpiMember::Tell(int teller, const absl::Status& cause) {
  if (!told_.ok() && teller_ < teller) return;
  told_ = cause;
  teller_ = teller;
}

absl::Status MpiMember::Fail(const absl::Status& cause) {
  if (!failure_.ok()) return failure_;
  Poll();
  if (told_.ok()) {
    const std::string text(cause.message());
    Post(Kind::kFailure, static_cast<uint64_t>(cause.code()), text.data(),
         text.size(), others_);
    Tell(rank(), cause);
  }
  const Clock::time_point settled = Clock::now() + kSettle;
  while (Clock::now() < settled) {
    Poll();
    std::this_thread::sleep_for(kSleep);
  }
  return failure_ = told_;
}

bool MpiMember::AllHaveLeft() {
  Poll();
  return AllHave([this](int peer) { return peers_[peer].left; });
}

std::string MpiMember::NameOf(int peer) const {
  if (!peers_[peer].introduced) return absl::StrCat("rank ", peer);
  const MpiIntroduction& it = introductions_[peer];
  const std::string host =
      IsNeighbour(peer) ? "" : absl::StrCat(" on ", it.host.data());
  return absl::StrCat("rank ", peer, " (pid ", it.process.pid, host, ")");
}

std::string MpiMember::SeenBy() const {
  if (sequence_ == 0 && !with_partner_) {
    return absl::StrCat(" (seen by rank ", rank(), ", joining the group)");
  }
  return absl::StrCat(" (seen by rank ", rank(),
                      with_partner_ ? " after call " : " in call ", sequence_,
                      ", ", ToString(call_), ")");
}

}  // namespace lockstep
