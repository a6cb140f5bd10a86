// What a rank of the command `syncbn` does: its turns, the steps of a network
// among them, and its PyTorch, in a process of its own.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_RANK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_RANK_H_

#include <array>
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
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "models/train/data_parallel.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

namespace lockstep::benchmarks {

// Starts a Python that has PyTorch, kept to time its BatchNorm2d on one thread.
// Tries `pythons` in turn, all before `deadline`. Error: kUnavailable, which
// says for each why it will not do.
absl::StatusOr<TorchProcess> StartSyncBnPeer(
    const std::vector<std::string>& pythons, absl::Time deadline);

// turn.note is "PyTorch 1.13.0 (/usr/bin/python3); its SyncBatchNorm on the
// CPU: ValueError: ...", or "... on the CPU: runs"; turn.missing is set where
// this PyTorch lacks the type or the memory, or does it wrong. Errors:
// kUnavailable and kDeadlineExceeded if the process ended or said nothing by
// `deadline`; kInternal if it said something else.
absl::StatusOr<RankTurn> TimePeer(TorchProcess& peer,
                                  const SyncBnRequest& request,
                                  absl::Time deadline);

// What torch_peer.py is told, and its answer to that. Errors: kInternal.
std::string PeerLine(const SyncBnRequest& request);
absl::StatusOr<RankTurn> ParsePeerAnswer(const SyncBnRequest& request,
                                         const std::string& answer);

// ResNet-18 three times, from the same seed: with local batch norm (kLocal),
// with SyncBatchNorm (kSync), and with SyncBatchNorm whose messages are timed
// (kSplit). Each rank has images of its own. Batch norm's messages have a group
// of their own, and gradients are summed meanwhile, as the trainer has it. Not
// thread safe.
class SyncBnNetwork {
 public:
  // Collective; borrows the group, and `timing`, where timers write.
  // `batch`: images on this rank. Errors: the group's and CreateModel's.
  static absl::StatusOr<std::unique_ptr<SyncBnNetwork>> Create(
      Communicator& group, CallTiming& timing, uint64_t seed, int64_t batch);

  // Steps (forward, backward, all-reduce of the gradients; no update) of the
  // network that request.subject names; turn.forward has one call for each.
  // turn.wrong: elements of the gradients of the last step that are not finite,
  // differ between ranks, or between kSync and kSplit, if the other has been
  // run. Collective. Errors: the group's.
  absl::StatusOr<RankTurn> Time(const SyncBnRequest& request);

 private:
  struct Replica {
    std::unique_ptr<Model> model;
    std::unique_ptr<GradientReducer> reducer;
    bool stepped = false;
  };

  SyncBnNetwork(Communicator& group, CallTiming& timing, int64_t batch)
      : group_(group), timing_(timing), batch_(batch) {}

  void FillBatch(uint64_t seed);

  absl::Status Step(Replica& replica);
  absl::StatusOr<int64_t> CountWrong(const Replica& replica);

  Communicator& group_;
  CallTiming& timing_;
  const int64_t batch_;
  std::vector<float> images_;
  std::vector<int32_t> labels_;
  // By SyncBnSubject. Before the group, which is to be left first
  // (models/train/data_parallel.h).
  std::array<Replica, 3> replicas_;
  std::unique_ptr<Communicator> norm_group_;  // Of SyncBatchNorm's messages.
  std::unique_ptr<TimedCommunicator> timed_group_;
};

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
  LayerSubjects subjects_;                            // Of layer_'s channels.
  std::optional<absl::StatusOr<TorchProcess>> peer_;  // Once looked for.
  std::unique_ptr<SyncBnNetwork> network_;
};

// Is a rank of the team (kProcesses: the one that the launcher says; kThreads:
// all of them) and takes turns until the driver that listens at `listener` says
// that it is over. Errors: of the group, of a turn.
absl::Status RunSyncBnRank(const std::string& listener, RankKind kind,
                           int world_size, const SyncBnRankOptions& options);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_RANK_H_
