// A training step of a whole network on one rank, under the clock.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_NETWORK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_NETWORK_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/timers.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "models/train/data_parallel.h"

namespace lockstep::benchmarks {

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
  // (models/data_parallel.h).
  std::array<Replica, 3> replicas_;
  std::unique_ptr<Communicator> norm_group_;  // Of SyncBatchNorm's messages.
  std::unique_ptr<TimedCommunicator> timed_group_;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_NETWORK_H_
