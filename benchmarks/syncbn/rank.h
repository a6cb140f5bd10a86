// The turns of a rank of the command `syncbn`, with the steps of a network and
// PyTorch in its own process.
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
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

namespace lockstep::benchmarks {

// Times PyTorch's BatchNorm2d on one thread, in a Python that runs the script
// SyncBnPeerTorch() (torch_peer.py).
//
// turn.note is "PyTorch 1.13.0 (/usr/bin/python3); its SyncBatchNorm on the
// CPU: ValueError: ...", or "... on the CPU: runs". turn.missing is set if this
// PyTorch lacks the type or the memory, or gives a wrong result. Errors:
// kUnavailable and kDeadlineExceeded if the process ended or did not answer by
// `deadline`; kInternal if its answer is not understood.
//
// where: empty, or "cuda DEVICE RANK WORLD_SIZE SETS FILE". On that GPU calls
// take turns on so many sets of tensors and are timed by events. If the subject
// is kTorchSync, its SyncBatchNorm is timed, whose processes meet in FILE. Each
// time is then the mean of a lap over the sets, and the note does not mention
// the CPU.
absl::StatusOr<RankTurn> TimePeer(TorchProcess& peer,
                                  const SyncBnRequest& request,
                                  absl::Time deadline,
                                  const std::string& where = "");

// Return the line that torch_peer.py is told, and parse its answer. Errors:
// kInternal.
std::string PeerLine(const SyncBnRequest& request,
                     const std::string& where = "");
absl::StatusOr<RankTurn> ParsePeerAnswer(const SyncBnRequest& request,
                                         const std::string& answer,
                                         const std::string& where = "");

// A network three times, from the same seed: with local batch norm (kLocal),
// with SyncBatchNorm (kSync), and with SyncBatchNorm whose messages are timed
// (kSplit). Each rank has its own images. Batch norm's messages have their own
// group, and gradients are summed meanwhile, as in the trainer. Not thread
// safe.
class SyncBnNetwork {
 public:
  // Makes the replicas. Collective. Borrows the group, and `timing`, where
  // timers write. `batch`: images on this rank. Errors: the group's,
  // DescribeTrained's and CreateCpuReplica's.
  static absl::StatusOr<std::unique_ptr<SyncBnNetwork>> Create(
      Communicator& group, CallTiming& timing, const TrainedNetwork& trained,
      uint64_t seed, int64_t batch);

  // Runs steps (forward, backward, all-reduce of the gradients; no update) of
  // the network that request.subject names. turn.forward has one call for each
  // step. turn.wrong counts elements of the last step's gradients that are not
  // finite, that differ between ranks, or that differ between kSync and kSplit
  // if both have run. Collective. Errors: the group's.
  absl::StatusOr<RankTurn> Time(const SyncBnRequest& request);

 private:
  struct Replica {
    std::unique_ptr<Model> model;
    std::unique_ptr<GradientReducer> reducer;
    bool stepped = false;
  };

  SyncBnNetwork(Communicator& group, CallTiming& timing, int64_t batch)
      : group_(group), timing_(timing), batch_(batch) {}

  void FillBatch(const NetworkInput& input, uint64_t seed);

  absl::Status Step(Replica& replica);
  absl::StatusOr<int64_t> CountWrong(const Replica& replica);

  Communicator& group_;
  CallTiming& timing_;
  const int64_t batch_;
  std::vector<float> images_;
  std::vector<int32_t> labels_;
  // By SyncBnSubject. Declared before the group, which must be left before the
  // replicas end (models/train/data_parallel.h).
  std::array<Replica, 3> replicas_;
  std::unique_ptr<Communicator> norm_group_;  // For SyncBatchNorm's messages.
  std::unique_ptr<TimedCommunicator> timed_group_;
};

struct SyncBnRankOptions {
  std::vector<std::string> pythons;  // Where PyTorch is looked for.
  // The timeout of the group. PyTorch has half of it to start and half of it
  // for a turn. So a PyTorch that hangs counts as missing before the turn times
  // out.
  absl::Duration timeout = absl::Seconds(120);
  TrainedNetwork network = {};  // For turns that are steps.
};

// One rank's PyTorch, from its first turn on. Not thread safe.
class SyncBnTorch {
 public:
  // Borrows the group, whose ranks begin a turn together.
  SyncBnTorch(Communicator& group, const SyncBnRankOptions& options)
      : group_(group), options_(options) {}

  // Takes a turn. where: as in TimePeer. If there is no PyTorch, if it ended or
  // hangs, or if it lacks the type, that is not an error: turn.missing says so.
  absl::StatusOr<RankTurn> Take(const SyncBnRequest& request,
                                const std::string& where = "");

 private:
  Communicator& group_;
  const SyncBnRankOptions options_;
  std::optional<absl::StatusOr<TorchProcess>> peer_;  // Set once PyTorch was
                                                      // looked for.
};

// Takes turns on one thread. Keeps the memory of the last turn's layer shape,
// and that of the network from its first step on. Keeps PyTorch until that
// step. Not thread safe.
class SyncBnRank {
 public:
  // Borrows the group.
  SyncBnRank(Communicator& group, const SyncBnRankOptions& options);

  // Takes a turn. Collective: every rank takes the same turns. Errors: those of
  // the group, of layers and of memory. If there is no PyTorch, if it ended or
  // hangs, or if it or oneDNN lacks the type, that is not an error:
  // turn.missing says so.
  absl::StatusOr<RankTurn> Take(const SyncBnRequest& request);

 private:
  absl::Status UseLayer(const LayerSpec& spec);
  absl::StatusOr<RankTurn> TimeMessages(const SyncBnRequest& request);
  absl::StatusOr<RankTurn> TimeCopies(const SyncBnRequest& request);
  absl::StatusOr<RankTurn> TimeNetwork(const SyncBnRequest& request);

  Communicator& group_;
  const SyncBnRankOptions options_;
  std::optional<SyncBnTorch> torch_;
  CallTiming timing_;
  CpuBatchNormKernels kernels_;
  TimedKernels timed_kernels_;
  TimedCommunicator timed_group_;
  std::unique_ptr<SyncBnLayer> layer_;
  LayerSubjects subjects_;  // For layer_'s channels.
  std::unique_ptr<SyncBnNetwork> network_;
};

// Runs one rank of the team (kProcesses: the launcher's rank) or all ranks
// (kThreads), and takes turns until the driver that listens at `listener`
// closes the connection. Errors: the group's, and those of a turn.
absl::Status RunSyncBnRank(const std::string& listener, RankKind kind,
                           int world_size, const SyncBnRankOptions& options);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_RANK_H_
