// The Communicator of both host backends, over shared memory.
#ifndef LOCKSTEP_COLLECTIVES_HOST_HOST_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_HOST_HOST_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/direct.h"
#include "collectives/host/group_member.h"
#include "collectives/host/shared_region.h"

namespace lockstep {

class HostCommunicator : public Communicator {
 public:
  // processes: of the ranks, in rank order; empty where ranks are threads of
  // one process.
  HostCommunicator(std::shared_ptr<SharedRegion> region, int rank,
                   absl::Duration timeout,
                   std::vector<ProcessIdentity> processes);

  int rank() const override { return member_.rank(); }
  int world_size() const override { return member_.world_size(); }
  absl::Status Run(const Collective& call) override;
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override;

 private:
  absl::Status RunWithAll(const Collective& call);
  absl::Status RunWithPartner(const Collective& call);
  absl::Status Finish(const absl::Status& status);
  absl::Status Enter(Operation operation, int64_t count, const CallSite& site);
  absl::StatusOr<std::vector<absl::StatusOr<std::string>>> ExchangeOffers(
      const absl::StatusOr<std::string>& mine, const CallSite& site);
  absl::StatusOr<GroupBuffer> AllocatePrivate(int64_t bytes,
                                              const CallSite& site);
  absl::StatusOr<GroupBuffer> AllocateShared(int64_t bytes,
                                             const CallSite& site);
  absl::StatusOr<std::vector<int>> RanksOfColor(int color, int key,
                                                const CallSite& site);
  absl::StatusOr<std::shared_ptr<SharedRegion>> MeetInRegion(
      const std::vector<int>& ranks, const CallSite& site);
  std::vector<int> AllRanks() const;
  bool ranks_are_threads() const { return processes_.empty(); }

  const absl::Duration timeout_;
  const std::vector<ProcessIdentity> processes_;
  GroupMember member_;
  SharedTransport transport_;
  GroupMemory memory_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_HOST_COMMUNICATOR_H_
