#include "collectives/host/message_member.h"

#include <sys/mman.h>
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
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/agreement/agreement.h"
#include "collectives/algorithms/over_transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {
namespace {

// Returns the boot of the kernel and the pid namespace. Process numbers have
// the same meaning only within both: containers of one host may each have their
// own.
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

// The interval at which a waiting rank looks for failures. Each look reads a
// file of /proc for every rank of this host. A dead rank must be named within
// about 100 ms.
constexpr std::chrono::milliseconds kLookEvery(20);

// The time that a rank that knows of two different calls waits for the calls of
// the other ranks, so that all name the same two.
constexpr absl::Duration kDisagreementPatience = absl::Milliseconds(100);

// The time that a failing rank listens for ranks that failed at the same time.
// All of them then return the text of the lowest one (Tell).
constexpr std::chrono::milliseconds kSettle(50);

constexpr int64_t kMaxSlotBytes = 16 << 20;

// Returns null without memory.
std::shared_ptr<void> ZeroedMemory(size_t size) {
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {memory, [size](void* data) { munmap(data, size); }};
}

// Returns an error of rank's own system, in words for all ranks.
absl::Status RankError(int rank, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("rank ", rank, ": ", status.message()));
}

}  // namespace

RankIntroduction IntroduceSelf(const GroupOptions& options) {
  RankIntroduction self;
  self.process = ThisProcess();
  gethostname(self.host.data(), self.host.size() - 1);
  const std::string system = System();
  std::copy_n(system.data(), std::min(system.size(), self.system.size() - 1),
              self.system.data());
  self.slot_bytes = options.slot_bytes;
  self.algorithm = options.algorithm;
  return self;
}

absl::Status CheckSettings(const RankIntroduction& first) {
  const int64_t bytes = first.slot_bytes;
  if (bytes > 0 && bytes % 64 == 0 && bytes <= kMaxSlotBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("slot_bytes is ", bytes,
                   " on rank 0, and must be a multiple of 64 up to 16 MiB"));
}

bool ControlMessage::Allows(int32_t kind, uint32_t size) {
  switch (static_cast<Kind>(kind)) {
    case Kind::kHello:
      return size == sizeof(RankIntroduction);
    case Kind::kCall:
    case Kind::kPartner:
      return size == sizeof(Call);
    case Kind::kAwake:
    case Kind::kLeft:
      return size == 0;
    case Kind::kFailure:
      return size <= kMaxBody;
  }
  return false;
}

MessageMember::MessageMember(ControlChannel& channel, int rank, int world_size,
                             absl::Duration timeout)
    : channel_(channel),
      rank_(rank),
      timeout_(timeout),
      peers_(static_cast<size_t>(world_size)),
      introductions_(peers_.size()),
      partner_calls_(peers_.size()),
      facts_(peers_.size()),
      spoke_(Clock::now()) {
  for (int peer = 0; peer < world_size; ++peer) {
    peers_[peer].heard = spoke_;
    if (peer != rank) others_.push_back(peer);
  }
}

absl::Status MessageMember::Introduce(const RankIntroduction& self,
                                      MessageMember* parent) {
  peers_[rank()].known = true;
  introductions_[rank()] = self;
  Post(Kind::kHello, 0, &self, sizeof(self), others_);
  parent_ = parent;
  const absl::Status all_there = Wait({}, [this] {
    return AllOthersSatisfy([this](int peer) { return peers_[peer].there; });
  });
  parent_ = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(all_there);
  SetIntroductions(introductions_);
  return absl::OkStatus();
}

// Stores the introductions. Decides whether to spin: on a core that an awaited
// rank needs, spinning would only delay that rank.
void MessageMember::SetIntroductions(
    std::vector<RankIntroduction> introductions) {
  introductions_ = std::move(introductions);
  for (Peer& peer : peers_) peer.known = true;
  std::vector<pid_t> pids;
  for (const ProcessIdentity& process : Neighbours()) {
    pids.push_back(process.pid);
  }
  may_spin_ = static_cast<int>(pids.size()) <= UsableCores(pids);
}

std::vector<ProcessIdentity> MessageMember::Neighbours() const {
  std::vector<ProcessIdentity> neighbours;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (IsNeighbour(peer)) neighbours.push_back(introductions_[peer].process);
  }
  return neighbours;
}

bool MessageMember::IsNeighbour(int peer) const {
  return peers_[peer].known &&
         introductions_[peer].system == introductions_[rank()].system;
}

void MessageMember::Post(Kind kind, uint64_t number, const void* body,
                         size_t size, std::span<const int> peers) {
  ControlMessage message;
  message.kind = kind;
  message.number = number;
  message.size = std::min(size, ControlMessage::kMaxBody);
  if (size > 0) std::memcpy(message.body.data(), body, message.size);
  channel_.Post(message, peers);
  if (peers.size() == others_.size()) spoke_ = Clock::now();
}

void MessageMember::Poll() {
  channel_.Poll(
      [this](int peer, const ControlMessage& message) { Take(peer, message); });
}

void MessageMember::Take(int peer, const ControlMessage& message) {
  Peer& sender = peers_[peer];
  sender.heard = Clock::now();
  Begun begun{message.number, {}};
  switch (message.kind) {
    case Kind::kHello:
      std::memcpy(&introductions_[peer], message.body.data(),
                  sizeof(RankIntroduction));
      introductions_[peer].host.back() = '\0';
      sender.known = sender.there = true;
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

absl::Status MessageMember::Begin(const Call& call) {
  if (!failure_.ok()) {
    return CallAfterFailure(rank(), call, failure_);
  }
  call_ = call;
  Poll();
  return first_cause_.ok() ? first_cause_ : Fail(first_cause_);
}

absl::Status MessageMember::Enter(const Call& call) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(call));
  ++sequence_;
  peers_[rank()].calls[sequence_ % 2] = {sequence_, call};
  Post(Kind::kCall, sequence_, &call, sizeof(call), others_);
  LOCKSTEP_RETURN_IF_ERROR(Wait({}, [this] {
    return AllOthersSatisfy([this](int peer) { return HasReached(peer); });
  }));
  const absl::Status agreement = Disagreement();
  return agreement.ok() ? agreement : Fail(agreement);
}

absl::Status MessageMember::EnterWithPartner(const Call& call) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(call));
  with_partner_ = true;
  Post(Kind::kPartner, ++partner_calls_[call.peer], &call, sizeof(call),
       std::span(&call.peer, 1));
  return absl::OkStatus();
}

// Returns whether a rank has begun the running call. Two slots suffice: Enter
// returns only once all ranks have begun the call, so no rank is more than one
// call ahead of another.
bool MessageMember::HasReached(int peer) const {
  return peers_[peer].calls[sequence_ % 2].sequence == sequence_;
}

bool MessageMember::AllOthersSatisfy(absl::FunctionRef<bool(int)> holds) const {
  return std::all_of(others_.begin(), others_.end(), holds);
}

// Compares the calls of the ranks that have reached the running call.
absl::Status MessageMember::Disagreement() const {
  return CompareCalls(sequence_, world_size(), [this](int peer) -> const Call* {
    return HasReached(peer) ? &peers_[peer].calls[sequence_ % 2].call : nullptr;
  });
}

// Returns an error if neither of two ranks' calls can end. One of them is in a
// call of the two (Send, Receive) and waits for the other rank. The other rank
// is in a call of all ranks and waits for the first. Either of the two ranks
// may be this one.
absl::Status MessageMember::DisagreementWithPartner() const {
  if (with_partner_) {
    const Begun& next = peers_[call_.peer].calls[(sequence_ + 1) % 2];
    if (next.sequence != sequence_ + 1) return absl::OkStatus();
    return CallsDiffer("ranks disagree", rank(), call_, call_.peer, next.call);
  }
  for (const int peer : others_) {
    const Begun& alone = peers_[peer].with_partner;
    if (HasReached(peer) || alone.sequence <= partner_calls_[peer]) {
      continue;  // It waits for no call, or for one already made.
    }
    return CallsDiffer("ranks disagree", rank(), call_, peer, alone.call);
  }
  return absl::OkStatus();
}

absl::Status MessageMember::WaitFor(int send_peer, int receive_peer,
                                    absl::FunctionRef<bool()> ready) {
  return ready() ? absl::OkStatus() : Wait({send_peer, receive_peer}, ready);
}

absl::Status MessageMember::Wait(const Awaited& awaited,
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
    // A rank may have died or left after the awaited step.
    if (!trouble.ok()) return ready() ? absl::OkStatus() : Fail(trouble);
    channel_.Idle(now - start, may_spin_, next_look - now);
  }
}

absl::Status MessageMember::LookForFailure(const Awaited& awaited) {
  if (!first_cause_.ok()) return first_cause_;
  if (!channel_.error().ok()) return RankError(rank(), channel_.error());
  UpdateFacts(awaited);
  for (const int peer : others_) {
    facts_[peer].lost = !channel_.Lost(peer).empty();
  }
  return ErrorOfGone(/*how=*/"");
}

// Sets the facts that need neither the channel nor the clock.
void MessageMember::UpdateFacts(const Awaited& awaited) {
  for (const int peer : others_) {
    facts_[peer] = {.reached = HasReached(peer),
                    .awaited = awaited.Has(peer),
                    .left = peers_[peer].left};
  }
}

absl::Status MessageMember::ErrorOfGone(absl::string_view how) const {
  const GoneRank gone = FindGone(facts_, rank(), with_partner_);
  if (gone.rank < 0) return absl::OkStatus();
  const std::string name = NameOf(gone.rank);
  if (gone.left) return LeftError(name, AsWitness());
  return LostError(name, how.empty() ? channel_.Lost(gone.rank) : how,
                   AsWitness());
}

absl::Status MessageMember::LookForTrouble(const Awaited& awaited,
                                           absl::Duration waited) {
  LOCKSTEP_RETURN_IF_ERROR(DisagreementWithPartner());
  if (!with_partner_ && waited >= kDisagreementPatience) {
    LOCKSTEP_RETURN_IF_ERROR(Disagreement());
  }
  LOCKSTEP_RETURN_IF_ERROR(LookForDead(awaited));
  if (parent_ != nullptr) LOCKSTEP_RETURN_IF_ERROR(parent_->Look());
  AnnounceAwake();
  if (waited < timeout_) return absl::OkStatus();
  const int late = LateRank(awaited);
  return LateError(late < 0 ? "a message to be delivered" : NameOf(late),
                   timeout_, late < 0 ? "" : channel_.Obstacle(late),
                   AsWitness());
}

// Looks for dead ranks on this host only, because only its kernel can be asked.
// If a rank dies on another host, the channel may report it. Otherwise the rank
// is silent and is named at the deadline.
absl::Status MessageMember::LookForDead(const Awaited& awaited) {
  std::vector<int> dead;
  for (const int peer : others_) {
    if (IsNeighbour(peer) && !peers_[peer].left &&
        !IsAlive(introductions_[peer].process)) {
      dead.push_back(peer);
    }
  }
  if (dead.empty()) return absl::OkStatus();
  Poll();  // A rank that ended after it left did not fail.
  if (!first_cause_.ok()) return absl::OkStatus();
  UpdateFacts(awaited);
  for (const int peer : dead) facts_[peer].lost = true;
  return ErrorOfGone("died");
}

// Sends kAwake several times within a timeout, so that FindLate can tell
// waiting ranks from the rank that they wait for.
void MessageMember::AnnounceAwake() {
  const absl::Duration silent = absl::FromChrono(Clock::now() - spoke_);
  if (silent >= timeout_ / 8) Post(Kind::kAwake, 0, nullptr, 0, others_);
}

// Returns the rank that this one waits for, if it has been silent for long, or
// one that that rank waits for. Waiting ranks send kAwake, so that they are not
// silent.
int MessageMember::LateRank(const Awaited& awaited) {
  UpdateFacts(awaited);
  const Clock::time_point now = Clock::now();
  for (const int peer : others_) {
    RankFacts& facts = facts_[peer];
    facts.awaited |= with_partner_ && peer == call_.peer;
    if (is_joining()) facts.reached = peers_[peer].there;
    facts.silent_nanos =
        std::chrono::nanoseconds(now - peers_[peer].heard).count();
  }
  return FindLate(facts_, rank(), absl::ToInt64Nanoseconds(timeout_ / 2),
                  /*only_missing=*/is_joining());
}

absl::Status MessageMember::Look() {
  Poll();
  AnnounceAwake();
  LOCKSTEP_RETURN_IF_ERROR(LookForFailure({}));
  return LookForDead({});
}

absl::Status MessageMember::Refuse(const Call& call, absl::string_view why) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(call));
  return Fail(CallRefused(rank(), call, why));
}

// Takes a cause. If ranks find the same failure at the same time, the text of
// the lowest rank counts.
void MessageMember::Tell(int teller, const absl::Status& cause) {
  if (!first_cause_.ok() && first_cause_rank_ < teller) return;
  first_cause_ = cause;
  first_cause_rank_ = teller;
}

absl::Status MessageMember::Fail(const absl::Status& cause) {
  if (!failure_.ok()) return failure_;
  Poll();
  if (first_cause_.ok()) {
    const std::string text(cause.message());
    Post(Kind::kFailure, static_cast<uint64_t>(cause.code()), text.data(),
         text.size(), others_);
    Tell(rank(), cause);
  }
  const Clock::time_point settled = Clock::now() + kSettle;
  while (Clock::now() < settled) {
    Poll();
    channel_.Idle(Clock::duration::max(), /*may_spin=*/false,
                  settled - Clock::now());
  }
  return failure_ = first_cause_;
}

bool MessageMember::HaveAllLeft() {
  Poll();
  return AllOthersSatisfy([this](int peer) { return peers_[peer].left; });
}

void MessageMember::AnnounceLeaving() {
  Post(Kind::kLeft, 0, nullptr, 0, others_);
}

std::string MessageMember::NameOf(int peer) const {
  if (!peers_[peer].known) return RankName(peer, /*pid=*/0);
  const RankIntroduction& it = introductions_[peer];
  return RankName(peer, it.process.pid,
                  IsNeighbour(peer) ? "" : it.host.data());
}

Witness MessageMember::AsWitness() const {
  return {rank(), sequence_, with_partner_, call_};
}

absl::Status MessageCommunicator::Run(const Collective& call) {
  const absl::Status valid = Validate(call, rank(), world_size());
  if (!valid.ok()) {
    return member().Refuse(CallOf(call, world_size()), valid.message());
  }
  return IsBetweenTwo(call.operation) ? RunWithPartner(call) : RunWithAll(call);
}

absl::Status MessageCommunicator::RunWithAll(const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(member().Enter(CallOf(call, world_size())));
  if (call.operation == Operation::kBarrier) return Finish(absl::OkStatus());
  return Finish(RunOverTransport(transport(), call, algorithm()));
}

// Runs a call of two ranks. Flushes before it leaves the partner, so that the
// last piece reaches the partner before a later call does.
absl::Status MessageCommunicator::RunWithPartner(const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(
      member().EnterWithPartner(CallOf(call, world_size())));
  absl::Status status = Move(call);
  member().LeavePartner();
  return status;
}

// Moves data within a call that has been entered.
absl::Status MessageCommunicator::Move(const Collective& call) {
  return Finish(RunOverTransport(transport(), call, Algorithm::kAuto));
}

absl::Status MessageCommunicator::Finish(const absl::Status& status) {
  return status.ok() ? transport().Flush() : member().Fail(status);
}

absl::Status MessageCommunicator::Enter(Operation operation, int64_t count,
                                        const CallSite& site) {
  const Call call = CallOf(operation, count, site);
  if (count < 0 || count > INT64_MAX / 2 / world_size()) {
    return member().Refuse(call, "the size is negative or too large");
  }
  return member().Enter(call);
}

// Gathers by rank, within a call that has been entered.
template <typename T>
absl::StatusOr<std::vector<T>> MessageCommunicator::AllOf(const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<size_t>(world_size()));
  LOCKSTEP_RETURN_IF_ERROR(
      Move(Collective::AllGather(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all)))));
  return all;
}

absl::StatusOr<GroupBuffer> MessageCommunicator::Allocate(int64_t bytes,
                                                          CallSite site) {
  LOCKSTEP_RETURN_IF_ERROR(Enter(Operation::kAllocate, bytes, site));
  if (bytes == 0) return GroupBuffer();
  std::shared_ptr<void> memory = ZeroedMemory(static_cast<size_t>(bytes));
  const uint8_t has = memory != nullptr ? 1 : 0;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<uint8_t> have, AllOf(has));
  const auto without = std::find(have.begin(), have.end(), 0);
  if (without != have.end()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", without - have.begin(), " cannot allocate ", bytes, " bytes"));
  }
  std::byte* const data = static_cast<std::byte*>(memory.get());
  return GroupBuffer(std::move(memory), {data, static_cast<size_t>(bytes)});
}

absl::StatusOr<std::unique_ptr<Communicator>> MessageCommunicator::Split(
    int color, int key, CallSite site) {
  LOCKSTEP_RETURN_IF_ERROR(Enter(Operation::kSplit, 0, site));
  struct SplitArguments {
    int64_t color;
    int64_t key;
    SplitOffer offer;
  };
  SplitArguments mine = {color, key, {}};
  const absl::StatusOr<SplitOffer> offer = OfferForSplit();
  if (!offer.ok()) return member().Fail(RankError(rank(), offer.status()));
  mine.offer = *offer;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<SplitArguments> wishes,
                            AllOf(mine));
  std::vector<int> ranks;
  std::vector<SplitOffer> offers;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (color >= 0 && wishes[peer].color == color) ranks.push_back(peer);
    offers.push_back(wishes[peer].offer);
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return wishes[a].key < wishes[b].key; });
  absl::StatusOr<std::unique_ptr<Communicator>> group = Subgroup(ranks, offers);
  if (group.ok()) return group;
  // The error's text numbers ranks by the new group.
  const absl::Status known = member().Look();
  if (!known.ok()) return member().Fail(known);
  return member().Fail(absl::Status(
      group.status().code(), absl::StrCat("in the new group of color ", color,
                                          ": ", group.status().message())));
}

std::vector<RankIntroduction> MessageCommunicator::IntroductionsOf(
    const std::vector<int>& ranks) const {
  std::vector<RankIntroduction> introductions;
  for (const int old : ranks) {
    introductions.push_back(member().introductions()[old]);
    introductions.back().slot_bytes = member().introductions()[0].slot_bytes;
    introductions.back().algorithm = algorithm();
  }
  return introductions;
}

}  // namespace lockstep
