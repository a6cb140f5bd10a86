// The Communicator of ranks that are connected by MPI.
#include "collectives/mpi/mpi_group.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/algorithms/transport.h"
#include "collectives/communicator.h"
#include "collectives/groups/create_group.h"
#include "collectives/host/message_member.h"
#include "collectives/mpi/mpi_channel.h"
#include "collectives/mpi/mpi_runtime.h"

namespace lockstep {
namespace {

// Returns the first of the two tags of a group's number. All groups share one
// MPI communicator, so making and leaving a group waits for nothing inside MPI.
// Groups that have a process in common have different numbers: even ones for
// joined groups, odd ones for split groups.
int64_t FirstTag(int64_t number) { return 2 * number; }

// The pieces under way to one rank. Two keep both sides busy. With two more, a
// rank that is off its core for a while does not stop the others.
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

// The pieces to and from one rank. Piece i is in slot i % kPieces.
struct Way {
  std::unique_ptr<std::byte[], AlignedDelete> memory;  // Sent, then received.
  std::array<MPI_Request, kPieces> sends = NoRequests();
  std::array<MPI_Request, kPieces> receives = NoRequests();
  int64_t sent = 0;
  int64_t released = 0;
  // The size of piece `released`, once the piece has arrived.
  std::optional<int> size;
};

bool IsDone(MPI_Request& request) {
  if (request == MPI_REQUEST_NULL) return true;
  int done = 0;
  MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  return done != 0;
}

// A transport over MPI. Several pieces may be under way to and from each rank.
// Sends wait until the receiver has a slot free; it keeps as many receives
// posted. Memory for a rank is allocated at its first use: 2 * max_pieces()
// pieces. Borrows the member.
//
// MPI keeps pointers into the transport until IsIdle() and, after Close(),
// IsClosed() return true.
class MpiTransport : public MessageTransport {
 public:
  MpiTransport(MessageMember& member, const MpiMembers& members, int piece_tag,
               int64_t max_piece_bytes)
      : member_(member),
        members_(members),
        piece_tag_(piece_tag),
        max_piece_bytes_(max_piece_bytes),
        ways_(member.world_size()) {}

  int rank() const override { return member_.rank(); }
  int world_size() const override { return member_.world_size(); }
  int64_t max_piece_bytes() const override { return max_piece_bytes_; }
  int max_pieces() const override { return kPieces; }

  std::optional<std::span<std::byte>> PieceBuffer(int peer) override {
    Way& way = To(peer);
    const int index = static_cast<int>(way.sent % kPieces);
    if (!IsDone(way.sends[index])) return std::nullopt;
    return std::span<std::byte>(Memory(way, index),
                                static_cast<size_t>(max_piece_bytes_));
  }

  void Send(int peer, int64_t size) override {
    Way& way = To(peer);
    const int index = static_cast<int>(way.sent++ % kPieces);
    Note(MPI_Isend(Memory(way, index), static_cast<int>(size), MPI_BYTE,
                   members_.processes[peer], piece_tag_, members_.comm,
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
      return (send_peer != kNoRank && PieceBuffer(send_peer).has_value()) ||
             (receive_peer != kNoRank && Received(receive_peer).has_value()) ||
             !error_.ok();
    }));
    return error_.ok() ? error_ : member_.Fail(error_);
  }

  absl::Status Flush() override {
    return member_.WaitFor(kNoRank, kNoRank, [this] { return IsIdle(); });
  }

  // Returns whether MPI has sent all pieces.
  bool IsIdle() {
    return std::all_of(ways_.begin(), ways_.end(), [](const auto& way) {
      return way == nullptr || std::ranges::all_of(way->sends, IsDone);
    });
  }

  // Discards the pieces that the others send.
  void Discard() {
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank() || !error_.ok()) continue;
      int waits = 0;
      Note(MPI_Iprobe(members_.processes[peer], piece_tag_, members_.comm,
                      &waits, MPI_STATUS_IGNORE),
           "MPI_Iprobe");
      if (waits == 0 && ways_[peer] == nullptr) continue;
      while (Received(peer).has_value()) Release(peer);
    }
  }

  // Stops receiving.
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

  // Sends use the first kPieces slots, receives the others.
  std::byte* Memory(Way& way, int index) const {
    return way.memory.get() + index * max_piece_bytes_;
  }

  void Receive(Way& way, int peer, int index) {
    Note(MPI_Irecv(Memory(way, kPieces + index),
                   static_cast<int>(max_piece_bytes_), MPI_BYTE,
                   members_.processes[peer], piece_tag_, members_.comm,
                   &way.receives[index]),
         "MPI_Irecv");
  }

  void Note(int code, const char* what) {
    error_.Update(MpiStatus(code, what));
  }

  MessageMember& member_;
  const MpiMembers members_;
  const int piece_tag_;
  const int64_t max_piece_bytes_;
  std::vector<std::unique_ptr<Way>> ways_;  // By rank; null until used.
  absl::Status error_;
};

// The objects of a group that MPI may hold pointers into.
class MpiGroup : public MpiGroupState {
 public:
  MpiGroup(MpiMembers of_mpi, int64_t number, absl::Duration timeout)
      : members(std::move(of_mpi)),
        first_tag(static_cast<int>(FirstTag(number))),
        channel(members, first_tag),
        member(channel, members.rank,
               static_cast<int>(members.processes.size()), timeout) {}

  // Makes the transport; call it once the introductions are known.
  void Connect() {
    const RankIntroduction& first = member.introductions()[0];
    algorithm = first.algorithm;
    transport = std::make_unique<MpiTransport>(member, members, first_tag + 1,
                                               first.slot_bytes);
  }

  void Leave() const override { channel.PostLeft(); }

  // Sweeps the group. If it failed, it may have left pieces behind. They are
  // discarded so that their senders can finish.
  bool Sweep() override {
    if (!closing_) {
      if (transport != nullptr) transport->Discard();
      if (!member.HaveAllLeft() || !IsIdle()) return false;
      channel.Close();
      if (transport != nullptr) transport->Close();
      closing_ = true;
    }
    return channel.IsClosed() &&
           (transport == nullptr || transport->IsClosed());
  }

  bool IsIdle() {
    return channel.IsIdle() && (transport == nullptr || transport->IsIdle());
  }

  const MpiMembers members;
  const int first_tag;
  MpiChannel channel;
  MessageMember member;
  Algorithm algorithm = Algorithm::kAuto;
  std::unique_ptr<MpiTransport> transport;

 private:
  bool closing_ = false;
};

class MpiCommunicator : public MessageCommunicator {
 public:
  MpiCommunicator(MpiRuntime& runtime, std::unique_ptr<MpiGroup> group)
      : runtime_(runtime), group_(std::move(group)) {
    runtime_.Add(*group_);
    runtime_.SweepRetired();
  }

  // Leaves the group. The runtime keeps the objects that MPI may still write
  // to.
  ~MpiCommunicator() override {
    if (group_->member.has_failed()) runtime_.NoteFailure();
    runtime_.Retire(std::move(group_));
  }

  // Returns once all have joined. Errors: MessageMember::Introduce's, and
  // kInvalidArgument for rank 0's settings.
  absl::Status Join(const RankIntroduction& self) {
    runtime_.WaitAtExit(group_->member.timeout(), {});
    LOCKSTEP_RETURN_IF_ERROR(group_->member.Introduce(self));
    runtime_.WaitAtExit(group_->member.timeout(), group_->member.Neighbours());
    LOCKSTEP_RETURN_IF_ERROR(CheckSettings(group_->member.introductions()[0]));
    group_->Connect();
    return absl::OkStatus();
  }

 private:
  MessageMember& member() const override { return group_->member; }
  MessageTransport& transport() const override { return *group_->transport; }
  Algorithm algorithm() const override { return group_->algorithm; }

  // Offers a number for the new group. The group uses the number of its rank 0.
  absl::StatusOr<SplitOffer> OfferForSplit() override {
    SplitOffer offer = {};
    const int64_t split = rank() == 0 ? runtime_.NextSplit() : 0;
    std::memcpy(offer.data(), &split, sizeof(split));
    return offer;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Subgroup(
      const std::vector<int>& ranks,
      std::span<const SplitOffer> offers) override {
    int64_t split = 0;
    std::memcpy(&split, offers[0].data(), sizeof(split));
    const int64_t number = 2 * split + 1;
    LOCKSTEP_RETURN_IF_ERROR(runtime_.CheckTag(FirstTag(number) + 1));
    if (ranks.empty()) return nullptr;
    const MpiMembers& parent = group_->members;
    MpiMembers members = {.comm = parent.comm, .processes = {}};
    for (const int old : ranks) {
      if (old == rank()) {
        members.rank = static_cast<int>(members.processes.size());
      }
      members.processes.push_back(parent.processes[old]);
    }
    auto group = std::make_unique<MpiGroup>(std::move(members), number,
                                            group_->member.timeout());
    group->member.SetIntroductions(IntroductionsOf(ranks));
    group->Connect();
    return std::make_unique<MpiCommunicator>(runtime_, std::move(group));
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
  // From here on the destructor leaves the group, also after an error.
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
