// The Communicator of ranks that MPI connects.
#include "collectives/mpi/mpi_group.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/algorithms/over_transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/launch/create_group.h"
#include "collectives/mpi/mpi_member.h"
#include "collectives/mpi/mpi_runtime.h"
#include "collectives/mpi/mpi_transport.h"

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
  // A group of all processes of the MPI job; returns once all have joined.
  // Errors: MpiMember::Introduce's, and kInvalidArgument for rank 0's settings.
  static absl::StatusOr<std::unique_ptr<Communicator>> Join(
      MpiRuntime& runtime, const MpiIntroduction& self, absl::Duration timeout);

  // Leaves the group. What MPI may still write to is kept by the runtime.
  ~MpiCommunicator() override;

  int rank() const override { return group_->member.rank(); }
  int world_size() const override { return group_->member.world_size(); }
  absl::Status Run(const Collective& call) override;

  // Plain memory of this process: ranks exchange messages, and do not reduce
  // from each other's memory.
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override;

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override;

 private:
  MpiCommunicator(MpiRuntime& runtime, std::unique_ptr<MpiGroup> group);
  absl::Status RunWithAll(const Collective& call);
  absl::Status RunWithPartner(const Collective& call);
  absl::Status Finish(const absl::Status& status);
  absl::Status Enter(Operation operation, int64_t count, const CallSite& site);
  // The first rank whose `mine` is false; world_size() if none is.
  absl::StatusOr<int> FirstWithout(bool mine);
  std::unique_ptr<MpiGroup> Subgroup(const std::vector<int>& ranks,
                                     int64_t number) const;

  MpiRuntime& runtime_;
  std::unique_ptr<MpiGroup> group_;
};

absl::StatusOr<std::unique_ptr<Communicator>> MpiCommunicator::Join(
    MpiRuntime& runtime, const MpiIntroduction& self, absl::Duration timeout) {
  MpiMembers members;
  members.comm = runtime.comm();
  members.rank = runtime.rank();
  members.processes.resize(static_cast<size_t>(runtime.world_size()));
  std::iota(members.processes.begin(), members.processes.end(), 0);
  const int64_t number = 2 * runtime.NextJoin();
  LOCKSTEP_RETURN_IF_ERROR(runtime.CheckTag(FirstTag(number) + 1));
  // From here on it leaves properly, also after an error.
  std::unique_ptr<MpiCommunicator> communicator(new MpiCommunicator(
      runtime,
      std::make_unique<MpiGroup>(std::move(members), number, timeout)));
  MpiGroup& group = *communicator->group_;
  runtime.WaitAtExit(timeout, {});
  LOCKSTEP_RETURN_IF_ERROR(group.member.Introduce(self));
  runtime.WaitAtExit(timeout, group.member.Neighbours());
  LOCKSTEP_RETURN_IF_ERROR(CheckSettings(group.member.introductions()[0]));
  group.Connect();
  return communicator;
}

MpiCommunicator::MpiCommunicator(MpiRuntime& runtime,
                                 std::unique_ptr<MpiGroup> group)
    : runtime_(runtime), group_(std::move(group)) {
  runtime_.Add(*group_);
  runtime_.SweepRetired();
}

MpiCommunicator::~MpiCommunicator() {
  if (group_->member.has_failed()) runtime_.NoteFailure();
  runtime_.Retire(std::move(group_));
}

absl::Status MpiCommunicator::Finish(const absl::Status& status) {
  return status.ok() ? group_->transport->Flush() : group_->member.Fail(status);
}

absl::Status MpiCommunicator::Run(const Collective& call) {
  const absl::Status valid = Validate(call, rank(), world_size());
  if (!valid.ok()) {
    return group_->member.Refuse(CallOf(call, world_size()), valid.message());
  }
  return IsBetweenTwo(call.operation) ? RunWithPartner(call) : RunWithAll(call);
}

absl::Status MpiCommunicator::RunWithAll(const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(group_->member.Enter(CallOf(call, world_size())));
  if (call.operation == Operation::kBarrier) {
    return Finish(absl::OkStatus());
  }
  return Finish(RunOverTransport(*group_->transport, call, group_->algorithm));
}

// Flushed before the partner is left, so that a call that follows does not come
// to it before the last piece.
absl::Status MpiCommunicator::RunWithPartner(const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(
      group_->member.EnterWithPartner(CallOf(call, world_size())));
  absl::Status status =
      Finish(RunOverTransport(*group_->transport, call, Algorithm::kAuto));
  group_->member.LeavePartner();
  return status;
}

absl::Status MpiCommunicator::Enter(Operation operation, int64_t count,
                                    const CallSite& site) {
  const Call call = CallOf(operation, count, site);
  if (count < 0 || count > INT64_MAX / 2 / world_size()) {
    return group_->member.Refuse(call, "that is no size");
  }
  return group_->member.Enter(call);
}

absl::StatusOr<int> MpiCommunicator::FirstWithout(bool mine) {
  const uint8_t has = mine ? 1 : 0;
  std::vector<uint8_t> have(static_cast<size_t>(world_size()));
  LOCKSTEP_RETURN_IF_ERROR(Finish(
      RunOverTransport(*group_->transport,
                       Collective::AllGather(std::span<const uint8_t>(&has, 1),
                                             std::span<uint8_t>(have)),
                       Algorithm::kAuto)));
  return static_cast<int>(std::find(have.begin(), have.end(), 0) -
                          have.begin());
}

absl::StatusOr<GroupBuffer> MpiCommunicator::Allocate(int64_t bytes,
                                                      CallSite site) {
  LOCKSTEP_RETURN_IF_ERROR(Enter(Operation::kAllocate, bytes, site));
  if (bytes == 0) return GroupBuffer();
  std::shared_ptr<void> memory = ZeroedMemory(static_cast<size_t>(bytes));
  LOCKSTEP_ASSIGN_OR_RETURN(const int without, FirstWithout(memory != nullptr));
  if (without < world_size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", without, " cannot allocate ", bytes, " bytes"));
  }
  std::byte* const data = static_cast<std::byte*>(memory.get());
  return GroupBuffer(std::move(memory), {data, static_cast<size_t>(bytes)});
}

absl::StatusOr<std::unique_ptr<Communicator>> MpiCommunicator::Split(
    int color, int key, CallSite site) {
  LOCKSTEP_RETURN_IF_ERROR(Enter(Operation::kSplit, 0, site));
  struct Wish {
    int64_t color;
    int64_t key;
    int64_t split;  // Of the new groups, on rank 0.
  };
  const Wish mine = {color, key, rank() == 0 ? runtime_.NextSplit() : 0};
  std::vector<Wish> wishes(static_cast<size_t>(world_size()));
  LOCKSTEP_RETURN_IF_ERROR(Finish(RunOverTransport(
      *group_->transport,
      Collective::AllGather(std::as_bytes(std::span<const Wish>(&mine, 1)),
                            std::as_writable_bytes(std::span<Wish>(wishes))),
      Algorithm::kAuto)));
  std::vector<int> ranks;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (wishes[peer].color == color) ranks.push_back(peer);
  }
  const int64_t number = 2 * wishes[0].split + 1;
  LOCKSTEP_RETURN_IF_ERROR(Finish(runtime_.CheckTag(FirstTag(number) + 1)));
  if (color < 0) return nullptr;
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return wishes[a].key < wishes[b].key; });
  return std::unique_ptr<Communicator>(
      new MpiCommunicator(runtime_, Subgroup(ranks, number)));
}

std::unique_ptr<MpiGroup> MpiCommunicator::Subgroup(
    const std::vector<int>& ranks, int64_t number) const {
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

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinMpiGroup(
    const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(MpiRuntime* const runtime,
                            MpiRuntime::Start(options.timeout));
  return MpiCommunicator::Join(*runtime, IntroduceSelf(options),
                               options.timeout);
}

namespace {
[[maybe_unused]] const bool kRegistered = RegisterBackend("mpi", JoinMpiGroup);
}  // namespace

}  // namespace lockstep
