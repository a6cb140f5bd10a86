#include "collectives/groups/create_group.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/groups/rank_environment.h"
#include "collectives/groups/rendezvous_location.h"
#include "collectives/host/host_group.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/sockets.h"
#include "collectives/rendezvous/tcp_rendezvous.h"
#include "collectives/tcp/tcp_group.h"

namespace lockstep {
namespace {

// Opens the rendezvous at `place`. A folder and its file are removed once all
// ranks have met and have destroyed their rendezvous objects.
absl::StatusOr<std::unique_ptr<Rendezvous>> OpenRendezvous(
    const RendezvousLocation& place, int rank, int world_size,
    const MeetingOptions& meeting) {
  const bool own_folder = !place.folder.empty();
  if (own_folder || !place.file.empty()) {
    return OpenFileRendezvous(
        {.path = own_folder ? place.folder + "/rendezvous" : place.file,
         .rank = rank,
         .world_size = world_size,
         .timeout = meeting.timeout,
         .own_folder = own_folder});
  }
  return TcpRendezvous::Open({.address = place.address,
                              .port = place.port,
                              .token = place.token,
                              .listen_address = place.listen_address,
                              .rank = rank,
                              .world_size = world_size,
                              .timeout = meeting.timeout,
                              .tell = meeting.tell});
}

bool IsLoopback(const std::string& host) {
  const absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(host, 0);
  return addresses.ok() && addresses->front().IsLoopback();
}

// Returns the address at which the other ranks of a group that meets at `place`
// reach this rank.
std::string OwnHost(const RendezvousLocation& place,
                    const Rendezvous& rendezvous) {
  const std::optional<std::string> given =
      LookUpProcessEnvironment("LOCKSTEP_HOST_ADDRESS");
  if (given.has_value()) return *given;
  std::string own = rendezvous.own_address();
  // A host may map its own name to loopback.
  const bool deceptive = IsLoopback(own) && !place.listen_address.empty() &&
                         !IsLoopback(place.listen_address);
  if (own.empty() || deceptive) own = OwnAddress().value_or("127.0.0.1");
  return own;
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinMeeting(
    const RankEnvironment& environment, bool by_tcp,
    const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RendezvousLocation place,
                            ChooseRendezvousLocation(environment));
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<Rendezvous> rendezvous,
      OpenRendezvous(place, environment.rank, environment.world_size,
                     {.timeout = options.timeout}));
  if (!by_tcp) return JoinProcessGroup(*rendezvous, options);
  const std::string host = OwnHost(place, *rendezvous);
  return JoinTcpGroup(std::move(rendezvous),
                      {.host = host, .token = place.token}, options);
}

using Backends = std::map<std::string, BackendFactory, std::less<>>;

Backends& RegisteredBackends() {
  static Backends* const backends = new Backends;
  return *backends;
}

absl::Status NotLinked(absl::string_view backend) {
  if (backend != "mpi" && backend != "nccl") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown backend '", backend,
                     "': must be threads, processes, tcp, mpi or nccl"));
  }
  return absl::UnimplementedError(absl::StrCat(
      "backend ", backend, ": this program was not linked with //collectives/",
      backend, ":", backend, "_group"));
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinGroup(
    absl::string_view backend, const GroupOptions& options) {
  if (backend == "processes" || backend == "tcp") {
    LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                              RequireRankEnvironment());
    return JoinMeeting(environment,
                       backend == "tcp" || !environment.is_on_one_host(),
                       options);
  }
  const auto registered = RegisteredBackends().find(backend);
  if (registered == RegisteredBackends().end()) return NotLinked(backend);
  return registered->second(options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinLaunchedGroup(
    const RankEnvironment& environment, const GroupOptions& options) {
  return JoinMeeting(environment, !environment.is_on_one_host(), options);
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinTcpGroupAt(
    const RendezvousLocation& place, int rank, int world_size,
    const MeetingOptions& meeting, const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Rendezvous> rendezvous,
                            OpenRendezvous(place, rank, world_size, meeting));
  const std::string host = OwnHost(place, *rendezvous);
  return JoinTcpGroup(std::move(rendezvous),
                      {.host = host, .token = place.token}, options);
}

bool RegisterBackend(absl::string_view name, BackendFactory factory) {
  RegisteredBackends().insert_or_assign(std::string(name), std::move(factory));
  return true;
}

absl::StatusOr<LocalRanks> CreateGroup(absl::string_view backend,
                                       int world_size,
                                       const GroupOptions& options) {
  if (world_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", world_size, " is negative"));
  }
  if (backend == "threads") {
    return CreateThreadGroup(
        world_size == 0 ? std::min(UsableCores(), kMaxWorldSize) : world_size,
        options);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> rank,
                            JoinGroup(backend, options));
  if (world_size != 0 && rank->world_size() != world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the group should have ", world_size, " ranks, but ",
                     rank->world_size(), " were started"));
  }
  LocalRanks ranks;
  ranks.push_back(std::move(rank));
  return ranks;
}

}  // namespace lockstep
