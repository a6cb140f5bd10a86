// What a rank of the command `syncbn` does, and its PyTorch, in a process of
// its own.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_RANK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_RANK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/timers.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

namespace lockstep::benchmarks {

// A Python that has PyTorch, kept to time its BatchNorm2d on one thread.
class SyncBnPeer {
 public:
  // Tries `pythons` in turn, all before `deadline`. Error: kUnavailable, which
  // says for each why it will not do.
  static absl::StatusOr<SyncBnPeer> Start(
      const std::vector<std::string>& pythons, absl::Time deadline);

  // turn.missing is set where this PyTorch lacks the type or the memory, or
  // does it wrong. Errors: kUnavailable and kDeadlineExceeded if the process
  // ended or said nothing by `deadline`; kInternal if it said something else.
  absl::StatusOr<RankTurn> Time(const SyncBnRequest& request,
                                absl::Time deadline);

  // "PyTorch 1.13.0 (/usr/bin/python3); its SyncBatchNorm on the CPU:
  // ValueError: ...", or "... on the CPU: runs".
  const std::string& name() const { return name_; }

 private:
  explicit SyncBnPeer(TorchProcess process);

  TorchProcess process_;
  std::string name_;
};

// What torch_peer.py is told, and its answer to that. Errors: kInternal.
std::string PeerLine(const SyncBnRequest& request);
absl::StatusOr<RankTurn> ParsePeerAnswer(const SyncBnRequest& request,
                                         const std::string& answer);

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
  CallTiming timing_;
  CpuBatchNormKernels kernels_;
  TimedKernels timed_kernels_;
  TimedCommunicator timed_group_;
  std::unique_ptr<SyncBnLayer> layer_;
  LayerSubjects subjects_;                          // Of layer_'s channels.
  std::optional<absl::StatusOr<SyncBnPeer>> peer_;  // Once looked for.
  std::unique_ptr<SyncBnNetwork> network_;
};

// Is a rank of the team (kProcesses: the one that the launcher says; kThreads:
// all of them) and takes turns until the driver that listens at `listener` says
// that it is over. Errors: of the group, of a turn.
absl::Status RunSyncBnRank(const std::string& listener, RankKind kind,
                           int world_size, const SyncBnRankOptions& options);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_RANK_H_
