// The Communicator of ranks that MPI connects.
#include "collectives/mpi/mpi_group.h"

#include <mpi.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/algorithms/over_transport.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/launch/create_group.h"
#include "collectives/mpi/mpi_member.h"
#include "collectives/mpi/mpi_runtime.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxSlotBytes = 16 << 20;

// All groups share one MPI communicator, so that making and leaving a group
// waits for nothing inside MPI. Groups that have a process in common have
// numbers of their own, and each number has two tags: joined groups the even
// numbers, split ones the odd ones.
int64_t FirstTag(int64_t number) { return 2 * number; }

absl::Status CheckSettings(const MpiIntroduction& first) {
  const int64_t bytes = first.slot_bytes;
  if (bytes > 0 && bytes % 64 == 0 && bytes <= kMaxSlotBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("slot_bytes is ", bytes,
                   " on rank 0, and must be a multiple of 64 up to 16 MiB"));
}

// Null without memory.
std::shared_ptr<void> ZeroedMemory(size_t size) {
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {memory, [size](void* data) { munmap(data, size); }};
}

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

// The pieces to and from one peer. Piece i is in slot i % kPieces.
struct Way {
  std::unique_ptr<std::byte[], AlignedDelete> memory;  // Sent, then received.
  std::array<MPI_Request, kPieces> sends = NoRequests();
  std::array<MPI_Request, kPieces> receives = NoRequests();
  int64_t sent = 0;
  int64_t released = 0;
  std::optional<int> size;  // Of piece `released`, once it is there.
};

bool IsDone(MPI_Request& request) {
  if (request == MPI_REQUEST_NULL) return true;
  int done = 0;
  MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  return done != 0;
}

// Several pieces may be under way to and from each peer: sends wait for room
// with the receiver, which keeps as many receives posted. Memory for a peer is
// taken when it is first used: 2 * max_pieces() pieces. Borrows the member.
//
// MPI keeps pointers into it until IsIdle() and, after Close(), IsClosed()
// hold.
class MpiTransport : public Transport {
 public:
  MpiTransport(MpiMember& member, int64_t max_piece_bytes)
      : member_(member),
        max_piece_bytes_(max_piece_bytes),
        ways_(member.world_size()) {}

  int rank() const override { return member_.rank(); }
  int world_size() const override { return member_.world_size(); }
  int64_t max_piece_bytes() const override { return max_piece_bytes_; }
  int max_pieces() const override { return kPieces; }

  std::optional<std::span<std::byte>> Room(int peer) override {
    Way& way = To(peer);
    const int index = static_cast<int>(way.sent % kPieces);
    if (!IsDone(way.sends[index])) return std::nullopt;
    return std::span<std::byte>(Memory(way, index),
                                static_cast<size_t>(max_piece_bytes_));
  }

  void Send(int peer, int64_t size) override {
    Way& way = To(peer);
    const int index = static_cast<int>(way.sent++ % kPieces);
    const MpiMembers& members = member_.members();
    Note(MPI_Isend(Memory(way, index), static_cast<int>(size), MPI_BYTE,
                   members.processes[peer], member_.piece_tag(), members.comm,
                   &way.sends[index]),
         "MPI_Isend");
  }

  std::optional<std::span<const std::byte>> Received(int peer) override {
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

  void Release(int peer) override {
    Way& way = To(peer);
    way.size.reset();
    Receive(way, peer, static_cast<int>(way.released++ % kPieces));
  }

  absl::Status Wait(int send_peer, int receive_peer) override {
    LOCKSTEP_RETURN_IF_ERROR(member_.WaitFor(send_peer, receive_peer, [&] {
      return (send_peer != kNobody && Room(send_peer).has_value()) ||
             (receive_peer != kNobody && Received(receive_peer).has_value()) ||
             !error_.ok();
    }));
    return error_.ok() ? error_ : member_.Fail(error_);
  }

  // Returns once MPI needs this rank no more to deliver what it has sent; until
  // then the receivers may depend on its coming back. Errors: as Wait's.
  absl::Status Flush() {
    return member_.WaitFor(kNobody, kNobody, [this] { return IsIdle(); });
  }

  // All that was sent is gone.
  bool IsIdle() {
    return std::all_of(ways_.begin(), ways_.end(), [](const auto& way) {
      return way == nullptr || std::ranges::all_of(way->sends, IsDone);
    });
  }

  // Throws away what the others send.
  void Discard() {
    const MpiMembers& members = member_.members();
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank() || !error_.ok()) continue;
      int waits = 0;
      Note(MPI_Iprobe(members.processes[peer], member_.piece_tag(),
                      members.comm, &waits, MPI_STATUS_IGNORE),
           "MPI_Iprobe");
      if (waits == 0 && ways_[peer] == nullptr) continue;
      while (Received(peer).has_value()) Release(peer);
    }
  }

  // Receives no more.
  void Close() {
    for (const std::unique_ptr<Way>& way : ways_) {
      if (way == nullptr) continue;
      for (MPI_Request& receive : way->receives) {
        if (receive != MPI_REQUEST_NULL) MPI_Cancel(&receive);
      }
    }
  }

  bool IsClosed() {
    return std::all_of(ways_.begin(), ways_.end(), [](const auto& way) {
      return way == nullptr || std::ranges::all_of(way->receives, IsDone);
    });
  }

 private:
  Way& To(int peer) {
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
  std::byte* Memory(Way& way, int index) const {
    return way.memory.get() + index * max_piece_bytes_;
  }

  void Receive(Way& way, int peer, int index) {
    const MpiMembers& members = member_.members();
    Note(MPI_Irecv(Memory(way, kPieces + index),
                   static_cast<int>(max_piece_bytes_), MPI_BYTE,
                   members.processes[peer], member_.piece_tag(), members.comm,
                   &way.receives[index]),
         "MPI_Irecv");
  }

  void Note(int code, const char* what) {
    error_.Update(MpiStatus(code, what));
  }

  MpiMember& member_;
  const int64_t max_piece_bytes_;
  std::vector<std::unique_ptr<Way>> ways_;  // By peer; null: not used yet.
  absl::Status error_;
};

// Everything that MPI may hold pointers into.
class MpiGroup : public MpiGroupState {
 public:
  MpiGroup(MpiMembers members, int64_t number, absl::Duration timeout)
      : timeout(timeout),
        member(std::move(members), static_cast<int>(FirstTag(number)),
               timeout) {}

  // Once the introductions are known.
  void Connect() {
    const MpiIntroduction& first = member.introductions()[0];
    algorithm = first.algorithm;
    transport = std::make_unique<MpiTransport>(member, first.slot_bytes);
  }

  void Leave() const override { member.Leave(); }

  // A group that failed may leave pieces behind, which are thrown away so that
  // their senders get rid of them.
  bool Sweep() override {
    if (!closing_) {
      if (transport != nullptr) transport->Discard();
      if (!member.AllHaveLeft() || !IsIdle()) return false;
      member.Close();
      if (transport != nullptr) transport->Close();
      closing_ = true;
    }
    return member.IsClosed() && (transport == nullptr || transport->IsClosed());
  }

  bool IsIdle() {
    return member.IsIdle() && (transport == nullptr || transport->IsIdle());
  }

  const absl::Duration timeout;
  MpiMember member;
  Algorithm algorithm = Algorithm::kAuto;
  std::unique_ptr<MpiTransport> transport;

 private:
  bool closing_ = false;
};

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(MpiRuntime& runtime, std::unique_ptr<MpiGroup> group)
      : runtime_(runtime), group_(std::move(group)) {
    runtime_.Add(*group_);
    runtime_.SweepRetired();
  }

  // Leaves the group. What MPI may still write to is kept by the runtime.
  ~MpiCommunicator() override {
    if (group_->member.has_failed()) runtime_.NoteFailure();
    runtime_.Retire(std::move(group_));
  }

  // Returns once all have joined. Errors: MpiMember::Introduce's, and
  // kInvalidArgument for rank 0's settings.
  absl::Status Join(const MpiIntroduction& self) {
    runtime_.WaitAtExit(group_->timeout, {});
    LOCKSTEP_RETURN_IF_ERROR(group_->member.Introduce(self));
    runtime_.WaitAtExit(group_->timeout, group_->member.Neighbours());
    LOCKSTEP_RETURN_IF_ERROR(CheckSettings(group_->member.introductions()[0]));
    group_->Connect();
    return absl::OkStatus();
  }

  int rank() const override { return group_->member.rank(); }
  int world_size() const override { return group_->member.world_size(); }

  absl::Status Run(const Collective& call) override {
    const absl::Status valid = Validate(call, rank(), world_size());
    if (!valid.ok()) {
      return group_->member.Refuse(CallOf(call, world_size()), valid.message());
    }
    return IsBetweenTwo(call.operation) ? RunWithPartner(call)
                                        : RunWithAll(call);
  }

  // Plain memory of this process: ranks exchange messages, and do not reduce
  // from each other's memory.
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    LOCKSTEP_RETURN_IF_ERROR(Enter(Operation::kAllocate, bytes, site));
    if (bytes == 0) return GroupBuffer();
    std::shared_ptr<void> memory = ZeroedMemory(static_cast<size_t>(bytes));
    const uint8_t has = memory != nullptr ? 1 : 0;
    std::vector<uint8_t> have(static_cast<size_t>(world_size()));
    LOCKSTEP_RETURN_IF_ERROR(
        Move(Collective::AllGather(std::span(&has, 1), have)));
    const auto without = std::find(have.begin(), have.end(), 0);
    if (without != have.end()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("rank ", without - have.begin(), " cannot allocate ",
                       bytes, " bytes"));
    }
    std::byte* const data = static_cast<std::byte*>(memory.get());
    return GroupBuffer(std::move(memory), {data, static_cast<size_t>(bytes)});
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override {
    LOCKSTEP_RETURN_IF_ERROR(Enter(Operation::kSplit, 0, site));
    struct Wish {
      int64_t color;
      int64_t key;
      int64_t split;  // Of the new groups, on rank 0.
    };
    const Wish mine = {color, key, rank() == 0 ? runtime_.NextSplit() : 0};
    std::vector<Wish> wishes(static_cast<size_t>(world_size()));
    LOCKSTEP_RETURN_IF_ERROR(
        Move(Collective::AllGather(std::as_bytes(std::span(&mine, 1)),
                                   std::as_writable_bytes(std::span(wishes)))));
    std::vector<int> ranks;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (wishes[peer].color == color) ranks.push_back(peer);
    }
    const int64_t number = 2 * wishes[0].split + 1;
    LOCKSTEP_RETURN_IF_ERROR(Finish(runtime_.CheckTag(FirstTag(number) + 1)));
    if (color < 0) return nullptr;
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
      return wishes[a].key < wishes[b].key;
    });
    return std::make_unique<MpiCommunicator>(runtime_, Subgroup(ranks, number));
  }

 private:
  absl::Status RunWithAll(const Collective& call) {
    LOCKSTEP_RETURN_IF_ERROR(group_->member.Enter(CallOf(call, world_size())));
    if (call.operation == Operation::kBarrier) return Finish(absl::OkStatus());
    return Finish(
        RunOverTransport(*group_->transport, call, group_->algorithm));
  }

  // Flushed before the partner is left, so that a call that follows does not
  // come to it before the last piece.
  absl::Status RunWithPartner(const Collective& call) {
    LOCKSTEP_RETURN_IF_ERROR(
        group_->member.EnterWithPartner(CallOf(call, world_size())));
    absl::Status status = Move(call);
    group_->member.LeavePartner();
    return status;
  }

  // Within a call that has been entered.
  absl::Status Move(const Collective& call) {
    return Finish(RunOverTransport(*group_->transport, call, Algorithm::kAuto));
  }

  absl::Status Finish(const absl::Status& status) {
    return status.ok() ? group_->transport->Flush()
                       : group_->member.Fail(status);
  }

  absl::Status Enter(Operation operation, int64_t count, const CallSite& site) {
    const Call call = CallOf(operation, count, site);
    if (count < 0 || count > INT64_MAX / 2 / world_size()) {
      return group_->member.Refuse(call, "that is no size");
    }
    return group_->member.Enter(call);
  }

  std::unique_ptr<MpiGroup> Subgroup(const std::vector<int>& ranks,
                                     int64_t number) const {
    const MpiMember& parent = group_->member;
    MpiMembers members;
    members.comm = parent.members().comm;
    std::vector<MpiIntroduction> introductions;
    for (const int old : ranks) {
      if (old == rank()) members.rank = static_cast<int>(introductions.size());
      members.processes.push_back(parent.members().processes[old]);
      introductions.push_back(parent.introductions()[old]);
      // Which hold for the group, whoever is its first rank.
      introductions.back().slot_bytes = parent.introductions()[0].slot_bytes;
      introductions.back().algorithm = group_->algorithm;
    }
    auto group =
        std::make_unique<MpiGroup>(std::move(members), number, group_->timeout);
    group->member.Know(std::move(introductions));
    group->Connect();
    return group;
  }

  MpiRuntime& runtime_;
  std::unique_ptr<MpiGroup> group_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinMpiGroup(
    const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(MpiRuntime* const runtime,
                            MpiRuntime::Start(options.timeout));
  MpiMembers members;
  members.comm = runtime->comm();
  members.rank = runtime->rank();
  members.processes.resize(static_cast<size_t>(runtime->world_size()));
  std::iota(members.processes.begin(), members.processes.end(), 0);
  const int64_t number = 2 * runtime->NextJoin();
  LOCKSTEP_RETURN_IF_ERROR(runtime->CheckTag(FirstTag(number) + 1));
  // From here on it leaves properly, also after an error.
  auto communicator = std::make_unique<MpiCommunicator>(
      *runtime,
      std::make_unique<MpiGroup>(std::move(members), number, options.timeout));
  LOCKSTEP_RETURN_IF_ERROR(communicator->Join(IntroduceSelf(options)));
  return communicator;
}

namespace {
[[maybe_unused]] const bool kRegistered = RegisterBackend("mpi", JoinMpiGroup);
}  // namespace

}  // namespace lockstep
