// A layer's memory on one rank, and its passes under the clock.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_LAYER_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_LAYER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/syncbn_check.h"
#include "benchmarks/syncbn_plan.h"
#include "benchmarks/syncbn_probe.h"
#include "benchmarks/syncbn_turn.h"
#include "collectives/communicator.h"
#include "models/aligned_buffer.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_options.h"

namespace lockstep {

// The layer that all subjects are at a shape: what BatchNormOptions is by
// default.
BatchNormOptions OptionsOf(const LayerSpec& spec);

// One rank's inputs and outputs of one layer, in host memory. The inputs of
// each rank are numbers of its own, about means of its own: where a rank uses
// the statistics of its own batch in place of all ranks', every output is
// wrong. Not thread safe.
class SyncBnLayer {
 public:
  // Fills the inputs and computes what is right. Collective; borrows the group.
  // Error: the group's.
  static absl::StatusOr<std::unique_ptr<SyncBnLayer>> Create(
      const LayerSpec& spec, Communicator& group);

  // Runs forward and backward `warmup` times, then `iterations` times under the
  // clock, the ranks meeting before each of the passes; then checks what the
  // last left. `probe` is where the layer's timers write, if it has any.
  // Collective. Errors: the layer's and the group's.
  absl::StatusOr<RankTurn> Time(BatchNorm& layer, bool synchronised,
                                const SyncBnRequest& request, Probe& probe);

  const LayerSpec& spec() const { return spec_; }

 private:
  SyncBnLayer(const LayerSpec& spec, Communicator& group);

  void FillInputs();
  // Leaves nothing of an earlier turn's outputs.
  void Spoil();
  BatchNorm::Forwards ForwardBuffers();
  BatchNorm::Backwards BackwardBuffers();
  LayerInputs Inputs() const;
  LayerOutputs Outputs() const;
  Buffer Tensor(AlignedBuffer& memory) const;
  ConstBuffer Tensor(const AlignedBuffer& memory) const;

  const LayerSpec spec_;
  Communicator& group_;
  AlignedBuffer x_, dy_, y_, dx_;  // Of the layer's type, not floats.
  AlignedBuffer weight_, bias_, dweight_, dbias_, mean_, variance_, saved_;
  int64_t batches_ = 0;
  std::optional<LayerReference> local_, synchronised_;
};

// Calls `pass` after all ranks of `group` have met, and returns its times, with
// what it left in the probe. Errors: of both.
absl::StatusOr<CallTimes> TimeCall(Communicator& group, Probe& probe,
                                   const std::function<absl::Status()>& pass);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_LAYER_H_
