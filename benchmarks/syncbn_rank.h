// What a rank of the command `syncbn` does.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_RANK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/scaling_plan.h"
#include "benchmarks/syncbn_layer.h"
#include "benchmarks/syncbn_network.h"
#include "benchmarks/syncbn_peer.h"
#include "benchmarks/syncbn_probe.h"
#include "benchmarks/syncbn_turn.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

namespace lockstep {

struct SyncBnRankOptions {
  std::vector<std::string> pythons;  // Where PyTorch is looked for.
  // Of the group. PyTorch has half of it to start in and half of it for a turn,
  // so that one that hangs is missing before anybody gives up the turn.
  absl::Duration timeout = absl::Seconds(120);
};

// Takes turns on one thread. Keeps the memory of one layer shape, that of its
// last turn, and of the network from its first step on; PyTorch until then. Not
// thread safe.
class SyncBnRank {
 public:
  // Borrows the group.
  SyncBnRank(Communicator& group, const SyncBnRankOptions& options);

  // Collective: every rank takes the same turns. Errors: those of the group, of
  // layers and of memory. That there is no PyTorch, that it ended or hangs, or
  // that it or oneDNN lacks the type, is no error, but turn.missing.
  absl::StatusOr<RankTurn> Take(const SyncBnRequest& request);

 private:
  absl::Status UseLayer(const LayerSpec& spec);
  absl::StatusOr<RankTurn> TimeLayer(const SyncBnRequest& request);
  absl::StatusOr<RankTurn> TimeMessages(const SyncBnRequest& request);
  absl::StatusOr<RankTurn> TimeCopies(const SyncBnRequest& request);
  absl::StatusOr<RankTurn> TimePeer(const SyncBnRequest& request);
  absl::StatusOr<RankTurn> TimeNetwork(const SyncBnRequest& request);

  Communicator& group_;
  const SyncBnRankOptions options_;
  Probe probe_;
  CpuBatchNormKernels kernels_;
  TimedKernels timed_kernels_;
  TimedCommunicator timed_group_;
  std::unique_ptr<SyncBnLayer> layer_;
  LayerSubjects subjects_;                          // Of layer_'s channels.
  std::optional<absl::StatusOr<SyncBnPeer>> peer_;  // Once looked for.
  std::unique_ptr<SyncBnNetwork> network_;
};

// The group of the ranks that the launcher started. Errors:
// kFailedPrecondition without a launcher; the group's.
absl::StatusOr<std::unique_ptr<Communicator>> JoinSyncBnRanks(
    const GroupOptions& options);

// Takes turns until the driver that listens at `listener` says that it is over.
// Errors: of a turn, and of the connection.
absl::Status ServeSyncBnTurns(
    const std::string& listener, Communicator& group,
    const std::function<absl::StatusOr<RankTurn>(const SyncBnRequest&)>& take);

// Is a rank of the team (kProcesses: the one that the launcher says; kThreads:
// all of them) and takes turns until the driver that listens at `listener` says
// that it is over. Errors: of the group, of a turn.
absl::Status RunSyncBnRank(const std::string& listener, RankKind kind,
                           int world_size, const SyncBnRankOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_RANK_H_
