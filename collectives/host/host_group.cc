// The Communicator of both host backends, over shared memory, and how ranks
// join.
#include "collectives/host/host_group.h"

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/algorithms/over_transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/direct.h"
#include "collectives/host/group_member.h"
#include "collectives/host/shared_region.h"
#include "collectives/host/staged.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {
namespace {

// Returns null for threads, which cannot die alone.
std::unique_ptr<ProcessWatch> Watch(
    const std::vector<ProcessIdentity>& processes, int rank) {
  if (processes.empty()) return nullptr;
  return std::make_unique<ProcessWatch>(processes, rank);
}

int CoresOf(const std::vector<ProcessIdentity>& processes) {
  if (processes.empty()) return UsableCores();
  std::vector<pid_t> pids;
  for (const ProcessIdentity& process : processes) {
    pids.push_back(process.pid);
  }
  return UsableCores(pids);
}

// The data that one rank offers the others, or its error, as the bytes sent.
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

// Returns the error of the first of `ranks` that has one.
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

absl::StatusOr<std::shared_ptr<SharedRegion>> Shared(
    absl::StatusOr<SharedRegion> region) {
  LOCKSTEP_RETURN_IF_ERROR(region.status());
  return std::make_shared<SharedRegion>(*std::move(region));
}

// Returns the message to the other ranks: `text`, or the error if there is
// none.
template <typename T>
absl::StatusOr<std::string> OfferOrError(const absl::StatusOr<T>& made,
                                         const std::string& text = "") {
  if (!made.ok()) return made.status();
  return text;
}

class HostCommunicator : public Communicator {
 public:
  // processes: by rank; empty if ranks are threads of one process.
  HostCommunicator(std::shared_ptr<SharedRegion> region, int rank,
                   absl::Duration timeout,
                   std::vector<ProcessIdentity> processes)
      : timeout_(timeout),
        processes_(std::move(processes)),
        member_(std::move(region), rank, timeout, Watch(processes_, rank),
                CoresOf(processes_)),
        transport_(member_),
        staged_(member_),
        memory_(rank, ranks_are_threads()) {}

  int rank() const override { return member_.rank(); }
  int world_size() const override { return member_.world_size(); }

  absl::Status Run(const Collective& call) override {
    const absl::Status valid = Validate(call, rank(), world_size());
    if (!valid.ok()) {
      return member_.Refuse(CallOf(call, world_size()), valid.message());
    }
    return IsBetweenTwo(call.operation) ? RunWithPartner(call)
                                        : RunWithAll(call);
  }

  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    LOCKSTEP_RETURN_IF_ERROR(Enter(Operation::kAllocate, bytes, site));
    if (bytes == 0) return GroupBuffer();
    return ranks_are_threads() ? AllocatePrivate(bytes, site)
                               : AllocateShared(bytes, site);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override {
    LOCKSTEP_RETURN_IF_ERROR(Enter(Operation::kSplit, 0, site));
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<int> ranks,
                              RanksOfColor(color, key, site));
    const bool joins = color >= 0;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::shared_ptr<SharedRegion> region,
        CreateOrOpenRegion(joins ? ranks : std::vector<int>{rank()}, site));
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

 private:
  bool ranks_are_threads() const { return processes_.empty(); }

  // Makes the group fail with an error of the algorithm as well.
  absl::Status Finish(const absl::Status& status) {
    return status.ok() ? status : member_.Fail(status);
  }

  absl::Status RunWithAll(const Collective& call) {
    const Algorithm algorithm = member_.region().shape().algorithm;
    const bool by_messages =
        algorithm == Algorithm::kRing || algorithm == Algorithm::kTree;
    BufferLocations places;
    if (!by_messages && !member_.has_failed()) {
      places = LocationsOf(call, member_, memory_);
    }
    const bool stages = !by_messages && !member_.has_failed() &&
                        staged_.Takes(call) && !places.reachable();
    if (stages) staged_.StageFirst(call);
    LOCKSTEP_RETURN_IF_ERROR(member_.Enter(
        CallOf(call, world_size()), places.input, places.output, places.here));
    if (call.operation == Operation::kBarrier) return absl::OkStatus();
    if (!by_messages) {
      const int reachable = CountReachable(member_);
      if (reachable == world_size()) return RunDirect(call, member_, memory_);
      if (staged_.Takes(call)) {
        return staged_.Run(call, /*all_staged=*/reachable == 0, stages);
      }
    }
    return Finish(RunOverTransport(transport_, call,
                                   by_messages ? algorithm : Algorithm::kAuto));
  }

  absl::Status RunWithPartner(const Collective& call) {
    LOCKSTEP_RETURN_IF_ERROR(
        member_.EnterWithPartner(CallOf(call, world_size())));
    absl::Status status =
        Finish(RunOverTransport(transport_, call, Algorithm::kAuto));
    member_.LeavePartner();
    return status;
  }

  absl::Status Enter(Operation operation, int64_t count, const CallSite& site) {
    const Call call = CallOf(operation, count, site);
    if (count < 0 || count > INT64_MAX / 2 / world_size()) {
      return member_.Refuse(call, "the size is negative or too large");
    }
    return member_.Enter(call);
  }

  absl::StatusOr<std::vector<absl::StatusOr<std::string>>> ExchangeOffers(
      const absl::StatusOr<std::string>& mine, const CallSite& site) {
    const Offer offer = OfferOf(mine);
    std::vector<Offer> offers(world_size());
    LOCKSTEP_RETURN_IF_ERROR(
        AllGather(std::as_bytes(std::span(&offer, 1)),
                  std::as_writable_bytes(std::span(offers)), site));
    std::vector<absl::StatusOr<std::string>> results;
    for (const Offer& other : offers) {
      if (other.code == 0) {
        results.emplace_back(std::string(other.text));
      } else {
        results.emplace_back(absl::Status(
            static_cast<absl::StatusCode>(other.code), other.text));
      }
    }
    return results;
  }

  absl::StatusOr<GroupBuffer> AllocatePrivate(int64_t bytes,
                                              const CallSite& site) {
    absl::StatusOr<SharedMemory> memory = SharedMemory::CreatePrivate(bytes);
    LOCKSTEP_ASSIGN_OR_RETURN(const auto offers,
                              ExchangeOffers(OfferOrError(memory), site));
    LOCKSTEP_RETURN_IF_ERROR(FirstError(offers, AllRanks()));
    auto owner = std::make_shared<SharedMemory>(*std::move(memory));
    const std::span<std::byte> data(owner->data(), static_cast<size_t>(bytes));
    ExpectHugePages(data);
    return GroupBuffer(std::move(owner), data);
  }

  // Allocates shared memory. Rank 0 creates it and the others open it.
  absl::StatusOr<GroupBuffer> AllocateShared(int64_t bytes,
                                             const CallSite& site) {
    absl::StatusOr<SharedMemory> memory = absl::UnavailableError("not rank 0");
    absl::StatusOr<std::string> mine = std::string();
    if (rank() == 0) {
      memory = SharedMemory::Create(GroupMemory::Stride(bytes) * world_size());
      mine = OfferOrError(memory, memory.ok() ? memory->path() : "");
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const auto paths, ExchangeOffers(mine, site));
    LOCKSTEP_RETURN_IF_ERROR(FirstError(paths, {0}));
    if (rank() != 0) memory = SharedMemory::Open(*paths[0]);
    LOCKSTEP_ASSIGN_OR_RETURN(const auto opened,
                              ExchangeOffers(OfferOrError(memory), site));
    LOCKSTEP_RETURN_IF_ERROR(FirstError(opened, AllRanks()));
    memory->CloseFile();
    return memory_.Add(std::make_shared<SharedMemory>(*std::move(memory)),
                       bytes);
  }

  std::vector<int> AllRanks() const {
    std::vector<int> ranks(world_size());
    for (int rank = 0; rank < world_size(); ++rank) ranks[rank] = rank;
    return ranks;
  }

  absl::StatusOr<std::vector<int>> RanksOfColor(int color, int key,
                                                const CallSite& site) {
    const int64_t mine[2] = {color, key};
    std::vector<int64_t> all(2 * static_cast<size_t>(world_size()));
    LOCKSTEP_RETURN_IF_ERROR(AllGather(std::span<const int64_t>(mine),
                                       std::span<int64_t>(all), site));
    std::vector<int> ranks;
    for (const int rank : AllRanks()) {
      if (all[2 * rank] == color) ranks.push_back(rank);
    }
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
      return all[2 * a + 1] < all[2 * b + 1];
    });
    return ranks;
  }

  // Makes the region of a new group. The first of `ranks` creates it and the
  // others open it.
  absl::StatusOr<std::shared_ptr<SharedRegion>> CreateOrOpenRegion(
      const std::vector<int>& ranks, const CallSite& site) {
    RegionShape shape = member_.region().shape();
    shape.world_size = static_cast<int>(ranks.size());
    absl::StatusOr<std::shared_ptr<SharedRegion>> region =
        absl::UnavailableError("made by another rank");
    absl::StatusOr<std::string> mine = std::string();
    if (rank() == ranks[0]) {
      region = Shared(
          SharedRegion::Create(shape, /*shareable=*/!ranks_are_threads()));
      mine = OfferOrError(region, region.ok() ? (*region)->path() : "");
      if (region.ok() && ranks_are_threads()) {
        member_.region().handed_over(rank()) = *region;
      }
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const auto made, ExchangeOffers(mine, site));
    if (rank() != ranks[0] && made[ranks[0]].ok()) {
      if (ranks_are_threads()) {
        region = member_.region().handed_over(ranks[0]);
      } else {
        region = Shared(SharedRegion::Open(*made[ranks[0]]));
      }
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const auto opened,
                              ExchangeOffers(OfferOrError(region), site));
    // All ranks have taken the region. (After an error some may be about to.)
    if (rank() == ranks[0] && ranks_are_threads()) {
      member_.region().handed_over(rank()).reset();
    }
    LOCKSTEP_RETURN_IF_ERROR(FirstError(opened, ranks));
    if (!ranks_are_threads()) (*region)->CloseFile();
    return region;
  }

  const absl::Duration timeout_;
  const std::vector<ProcessIdentity> processes_;
  GroupMember member_;
  SharedTransport transport_;
  StagedReduction staged_;
  GroupMemory memory_;
};

absl::Status DidNotCome(size_t rank) {
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", rank, " did not come to form this group"));
}

// The first message of a rank: its identity and, from rank 0 alone, the path of
// the memory.
struct Introduction {
  ProcessIdentity process;
  std::string path;
};

absl::StatusOr<std::vector<Introduction>> Introduce(
    Rendezvous& rendezvous, const absl::StatusOr<SharedRegion>& created) {
  absl::StatusOr<std::string> mine = std::string();
  if (rendezvous.rank() == 0 && !created.ok()) {
    mine = created.status();
  } else {
    const ProcessIdentity self = ThisProcess();
    mine = absl::StrCat(self.pid, " ", self.start_ticks, " ",
                        created.ok() ? created->path() : "");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                            ExchangeResults(rendezvous, mine));
  std::vector<Introduction> introductions(texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    auto& [process, path] = introductions[rank];
    const std::vector<std::string> words = absl::StrSplit(texts[rank], ' ');
    if (words.size() != 3 || !absl::SimpleAtoi(words[0], &process.pid) ||
        !absl::SimpleAtoi(words[1], &process.start_ticks)) {
      return DidNotCome(rank);
    }
    path = words[2];
  }
  return introductions;
}

absl::StatusOr<SharedRegion> OpenRegion(const std::string& path,
                                        int world_size) {
  LOCKSTEP_ASSIGN_OR_RETURN(SharedRegion region, SharedRegion::Open(path));
  if (region.shape().world_size != world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is another group's memory"));
  }
  return region;
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateThreadGroup(
    int world_size, const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      SharedRegion created,
      SharedRegion::Create({world_size, options.slot_bytes, options.algorithm},
                           /*shareable=*/false));
  const auto region = std::make_shared<SharedRegion>(std::move(created));
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < world_size; ++rank) {
    group.push_back(std::make_unique<HostCommunicator>(
        region, rank, options.timeout, std::vector<ProcessIdentity>()));
  }
  return group;
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinProcessGroup(
    Rendezvous& rendezvous, const GroupOptions& options) {
  const int rank = rendezvous.rank();
  absl::StatusOr<SharedRegion> region = absl::UnavailableError("not rank 0");
  if (rank == 0) {
    region = SharedRegion::Create(
        {rendezvous.world_size(), options.slot_bytes, options.algorithm},
        /*shareable=*/true);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Introduction> introductions,
                            Introduce(rendezvous, region));
  std::vector<ProcessIdentity> processes;
  for (const Introduction& introduction : introductions) {
    processes.push_back(introduction.process);
  }
  if (rank != 0) {
    region = OpenRegion(introductions[0].path, rendezvous.world_size());
  }
  if (region.ok()) {
    region->control(rank).pid.store(ThisProcess().pid,
                                    std::memory_order_relaxed);
  }
  // Once all ranks have mapped the memory, no other process needs its path.
  LOCKSTEP_RETURN_IF_ERROR(
      ExchangeResults(rendezvous, OfferOrError(region)).status());
  region->CloseFile();
  return std::make_unique<HostCommunicator>(
      std::make_shared<SharedRegion>(*std::move(region)), rank, options.timeout,
      std::move(processes));
}

absl::Status RunOnThreads(
    int world_size, const GroupOptions& options,
    const std::function<absl::Status(Communicator&)>& fn) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::vector<std::unique_ptr<Communicator>> communicators,
      CreateThreadGroup(world_size, options));
  std::vector<absl::Status> statuses(communicators.size());
  std::vector<std::thread> threads;
  threads.reserve(communicators.size());
  for (size_t rank = 0; rank < communicators.size(); ++rank) {
    try {
      threads.emplace_back([&, rank] {
        statuses[rank] = fn(*communicators[rank]);
        communicators[rank].reset();
      });
    } catch (const std::exception& error) {
      statuses[rank] = absl::ResourceExhaustedError(absl::StrCat(
          "rank ", rank, ": cannot start its thread: ", error.what()));
      communicators[rank].reset();  // The running ranks then see an error.
    }
  }
  for (std::thread& thread : threads) thread.join();
  absl::Status first;
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    if (!absl::IsUnavailable(status)) return status;
    first.Update(status);
  }
  return first;
}

}  // namespace lockstep
