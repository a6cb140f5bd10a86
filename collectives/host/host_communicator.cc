#include "collectives/host/host_communicator.h"

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/cores.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/algorithms/over_transport.h"
#include "collectives/call.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/direct.h"
#include "collectives/host/peer_watch.h"
#include "collectives/host/shared_region.h"

namespace lockstep {
namespace {

// Threads cannot die alone.
std::unique_ptr<PeerWatch> Watch(const std::vector<ProcessIdentity>& processes,
                                 int rank) {
  if (processes.empty()) return nullptr;
  return std::make_unique<PeerWatch>(processes, rank);
}

int CoresOf(const std::vector<ProcessIdentity>& processes) {
  if (processes.empty()) return UsableCores();
  std::vector<pid_t> pids;
  for (const ProcessIdentity& process : processes) {
    pids.push_back(process.pid);
  }
  return UsableCores(pids);
}

// What one rank offers the others, or why it cannot, as the bytes that travel.
struct Offer {
  int32_t code = 0;  // absl::StatusCode.
  char text[124] = {};
};

Offer OfferOf(const absl::StatusOr<std::string>& result) {
  Offer offer;
  offer.code = static_cast<int32_t>(result.status().code());
  const std::string text =
      result.ok() ? *result : std::string(result.status().message());
  std::memcpy(offer.text, text.data(),
              std::min(text.size(), sizeof(offer.text) - 1));
  return offer;
}

// The error of the first of `ranks` that has one.
absl::Status FirstError(const std::vector<absl::StatusOr<std::string>>& offers,
                        const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    const absl::Status& status = offers[rank].status();
    if (status.ok()) continue;
    return absl::Status(
        status.code(),
        absl::StrCat("rank ", rank, ": ", std::string(status.message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SharedRegion>> RegionNumbered(
    const std::string& text) {
  int64_t number = 0;
  std::shared_ptr<SharedRegion> region;
  if (absl::SimpleAtoi(text, &number)) region = FindListedRegion(number);
  if (region == nullptr) {
    return absl::UnavailableError("the new group's memory is gone");
  }
  return region;
}

absl::StatusOr<std::shared_ptr<SharedRegion>> Shared(
    absl::StatusOr<SharedRegion> region) {
  LOCKSTEP_RETURN_IF_ERROR(region.status());
  return std::make_shared<SharedRegion>(*std::move(region));
}

}  // namespace

HostCommunicator::HostCommunicator(std::shared_ptr<SharedRegion> region,
                                   int rank, absl::Duration timeout,
                                   std::vector<ProcessIdentity> processes)
    : timeout_(timeout),
      processes_(std::move(processes)),
      member_(std::move(region), rank, timeout, Watch(processes_, rank),
              CoresOf(processes_)),
      transport_(member_),
      memory_(rank, ranks_are_threads()) {}

// An error that the algorithm itself found makes the group fail as well.
absl::Status HostCommunicator::Finish(const absl::Status& status) {
  return status.ok() ? status : member_.Fail(status);
}

absl::Status HostCommunicator::Run(const Collective& call) {
  const absl::Status valid = Validate(call, rank(), world_size());
  if (!valid.ok()) {
    return member_.Refuse(CallOf(call, world_size()), valid.message());
  }
  const bool with_partner = call.operation == Operation::kSend ||
                            call.operation == Operation::kReceive;
  return with_partner ? RunWithPartner(call) : RunWithAll(call);
}

absl::Status HostCommunicator::RunWithAll(const Collective& call) {
  const Algorithm algorithm = member_.region().shape().algorithm;
  const bool by_messages =
      algorithm == Algorithm::kRing || algorithm == Algorithm::kTree;
  Places places;
  if (!by_messages && !member_.has_failed()) {
    places = PlacesOf(call, member_, memory_);
  }
  LOCKSTEP_RETURN_IF_ERROR(
      member_.Enter(CallOf(call, world_size()), places.input, places.output));
  if (call.operation == Operation::kBarrier) return absl::OkStatus();
  if (!by_messages && CanRunDirect(member_)) {
    return RunDirect(call, member_, memory_);
  }
  return Finish(RunOverTransport(transport_, call,
                                 by_messages ? algorithm : Algorithm::kAuto));
}

absl::Status HostCommunicator::RunWithPartner(const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(
      member_.EnterWithPartner(CallOf(call, world_size())));
  absl::Status status =
      Finish(RunOverTransport(transport_, call, Algorithm::kAuto));
  member_.LeavePartner();
  return status;
}

absl::Status HostCommunicator::Enter(Operation operation, int64_t count,
                                     const CallSite& site) {
  const Call call = CallOf(operation, count, site);
  if (count < 0 || count > INT64_MAX / 2 / world_size()) {
    return member_.Refuse(call, "that is no size");
  }
  return member_.Enter(call);
}

absl::StatusOr<std::vector<absl::StatusOr<std::string>>>
HostCommunicator::ExchangeOffers(const absl::StatusOr<std::string>& mine,
                                 const CallSite& site) {
  const Offer offer = OfferOf(mine);
  std::vector<Offer> offers(world_size());
  LOCKSTEP_RETURN_IF_ERROR(AllGather(std::as_bytes(std::span(&offer, 1)),
                                     std::as_writable_bytes(std::span(offers)),
                                     site));
  std::vector<absl::StatusOr<std::string>> results;
  for (const Offer& other : offers) {
    if (other.code == 0) {
      results.emplace_back(std::string(other.text));
    } else {
      results.emplace_back(
          absl::Status(static_cast<absl::StatusCode>(other.code), other.text));
    }
  }
  return results;
}

absl::StatusOr<GroupBuffer> HostCommunicator::Allocate(int64_t bytes,
                                                       CallSite site) {
  LOCKSTEP_RETURN_IF_ERROR(Enter(Operation::kAllocate, bytes, site));
  if (bytes == 0) return GroupBuffer();
  return ranks_are_threads() ? AllocatePrivate(bytes, site)
                             : AllocateShared(bytes, site);
}

absl::StatusOr<GroupBuffer> HostCommunicator::AllocatePrivate(
    int64_t bytes, const CallSite& site) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::CreatePrivate(bytes);
  absl::StatusOr<std::string> mine = std::string();
  if (!memory.ok()) mine = memory.status();
  LOCKSTEP_ASSIGN_OR_RETURN(const auto offers, ExchangeOffers(mine, site));
  LOCKSTEP_RETURN_IF_ERROR(FirstError(offers, AllRanks()));
  auto owner = std::make_shared<SharedMemory>(*std::move(memory));
  std::byte* data = owner->data();
  return GroupBuffer(std::move(owner), {data, static_cast<size_t>(bytes)});
}

absl::StatusOr<GroupBuffer> HostCommunicator::AllocateShared(
    int64_t bytes, const CallSite& site) {
  const int64_t all = GroupMemory::Stride(bytes) * world_size();
  absl::StatusOr<SharedMemory> memory = absl::UnavailableError("not rank 0");
  absl::StatusOr<std::string> mine = std::string();
  if (rank() == 0) {
    memory = SharedMemory::Create(all);
    mine = memory.ok() ? absl::StatusOr<std::string>(memory->path())
                       : memory.status();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto paths, ExchangeOffers(mine, site));
  LOCKSTEP_RETURN_IF_ERROR(FirstError(paths, {0}));
  if (rank() != 0) memory = SharedMemory::Open(*paths[0]);
  mine = memory.ok() ? absl::StatusOr<std::string>(std::string())
                     : memory.status();
  LOCKSTEP_ASSIGN_OR_RETURN(const auto opened, ExchangeOffers(mine, site));
  LOCKSTEP_RETURN_IF_ERROR(FirstError(opened, AllRanks()));
  memory->CloseFile();
  return memory_.Add(std::make_shared<SharedMemory>(*std::move(memory)), bytes);
}

std::vector<int> HostCommunicator::AllRanks() const {
  std::vector<int> ranks(world_size());
  for (int rank = 0; rank < world_size(); ++rank) ranks[rank] = rank;
  return ranks;
}

absl::StatusOr<std::vector<int>> HostCommunicator::RanksOfColor(
    int color, int key, const CallSite& site) {
  const int64_t mine[2] = {color, key};
  std::vector<int64_t> all(2 * static_cast<size_t>(world_size()));
  LOCKSTEP_RETURN_IF_ERROR(
      AllGather(std::span<const int64_t>(mine), std::span<int64_t>(all), site));
  std::vector<int> ranks;
  for (const int rank : AllRanks()) {
    if (all[2 * rank] == color) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return all[2 * a + 1] < all[2 * b + 1];
  });
  return ranks;
}

// The first of `ranks` makes the region and the others open it.
absl::StatusOr<std::shared_ptr<SharedRegion>> HostCommunicator::MeetInRegion(
    const std::vector<int>& ranks, const CallSite& site) {
  RegionShape shape = member_.region().shape();
  shape.world_size = static_cast<int>(ranks.size());
  absl::StatusOr<std::shared_ptr<SharedRegion>> region =
      absl::UnavailableError("made by another rank");
  absl::StatusOr<std::string> mine = std::string();
  std::optional<ListedRegion> listed;
  if (rank() == ranks[0]) {
    region = Shared(ranks_are_threads() ? SharedRegion::Create(shape)
                                        : SharedRegion::CreateShareable(shape));
    if (!region.ok()) {
      mine = region.status();
    } else {
      if (ranks_are_threads()) listed.emplace(*region);
      mine = ranks_are_threads() ? absl::StrCat(listed->number())
                                 : (*region)->path();
    }
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto made, ExchangeOffers(mine, site));
  if (rank() != ranks[0] && made[ranks[0]].ok()) {
    const std::string& where = *made[ranks[0]];
    region = ranks_are_threads() ? RegionNumbered(where)
                                 : Shared(SharedRegion::Open(where));
  }
  mine = std::string();
  if (!region.ok()) mine = region.status();
  LOCKSTEP_ASSIGN_OR_RETURN(const auto opened, ExchangeOffers(mine, site));
  LOCKSTEP_RETURN_IF_ERROR(FirstError(opened, ranks));
  if (!ranks_are_threads()) (*region)->CloseFile();
  return region;
}

absl::StatusOr<std::unique_ptr<Communicator>> HostCommunicator::Split(
    int color, int key, CallSite site) {
  LOCKSTEP_RETURN_IF_ERROR(Enter(Operation::kSplit, 0, site));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<int> ranks,
                            RanksOfColor(color, key, site));
  const bool joins = color >= 0;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::shared_ptr<SharedRegion> region,
      MeetInRegion(joins ? ranks : std::vector<int>{rank()}, site));
  if (!joins) return nullptr;
  const int new_rank = static_cast<int>(
      std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  std::vector<ProcessIdentity> processes;
  if (!ranks_are_threads()) {
    for (const int old : ranks) processes.push_back(processes_[old]);
    region->control(new_rank).pid.store(processes[new_rank].pid,
                                        std::memory_order_relaxed);
  }
  return std::make_unique<HostCommunicator>(region, new_rank, timeout_,
                                            std::move(processes));
}

}  // namespace lockstep
