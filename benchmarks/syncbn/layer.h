// A layer's memory on one rank, on the host and where it runs, and its passes
// under the clock.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_LAYER_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_LAYER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "benchmarks/syncbn/check.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/timers.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {

// Memory of a device, each part of which is a copy of host memory.
class LayerMirror {
 public:
  virtual ~LayerMirror() = default;

  // Adds device memory for `host`, which outlives this, not yet copied.
  virtual absl::Status Add(std::span<float> host) = 0;
  // The device memory of what begins at `host` and was added.
  virtual void* Of(const float* host) const = 0;

  // Copy all of it from the host, and back; return when it is done.
  virtual absl::Status Upload() = 0;
  virtual absl::Status Download() = 0;
};

// The layer that all subjects are at a shape: what BatchNormOptions is by
// default.
BatchNormOptions OptionsOf(const LayerSpec& spec);

// One rank's inputs and outputs of one layer, in host memory, and for a layer
// that runs elsewhere in a mirror, which it is given then. The inputs of
// each rank are numbers of its own, about means of its own: where a rank uses
// the statistics of its own batch in place of all ranks', every output is
// wrong. Not thread safe.
class SyncBnLayer {
 public:
  // Fills the inputs and computes what is right. Collective; borrows the group,
  // whose memory is the host's. mirror: an empty one, or null: the layer runs
  // on the host. Errors: the group's and the mirror's.
  static absl::StatusOr<std::unique_ptr<SyncBnLayer>> Create(
      const LayerSpec& spec, Communicator& group,
      std::unique_ptr<LayerMirror> mirror = nullptr);

  // Runs forward and backward `warmup` times, then `iterations` times under the
  // clock, the ranks meeting before each of the passes; then checks what the
  // last left. `layer` is done when its calls return. `timing` is where its
  // timers write, if it has any. Collective. Errors: the layer's, the group's
  // and the mirror's.
  absl::StatusOr<RankTurn> Time(BatchNorm& layer, bool synchronised,
                                const SyncBnRequest& request,
                                CallTiming& timing);

  const LayerSpec& spec() const { return spec_; }

 private:
  SyncBnLayer(const LayerSpec& spec, Communicator& group,
              std::unique_ptr<LayerMirror> mirror);

  std::array<AlignedBuffer*, 11> AllMemory();
  void FillInputs();
  // Leaves nothing of an earlier turn's outputs.
  void Spoil();
  BatchNorm::Forwards ForwardBuffers();
  BatchNorm::Backwards BackwardBuffers();
  LayerInputs Inputs() const;
  LayerOutputs Outputs() const;
  // `memory` where the layer runs.
  Buffer Placed(AlignedBuffer& memory, int64_t count, DataType type) const;
  Buffer PlacedTensor(AlignedBuffer& memory) const;
  Buffer PlacedChannels(AlignedBuffer& memory) const;
  Buffer PlacedRecord();
  // `memory` on the host.
  Buffer Tensor(AlignedBuffer& memory) const;
  ConstBuffer Tensor(const AlignedBuffer& memory) const;

  const LayerSpec spec_;
  Communicator& group_;
  AlignedBuffer x_, dy_, y_, dx_;  // Of the layer's type, not floats.
  AlignedBuffer weight_, bias_, dweight_, dbias_, mean_, variance_, saved_;
  const std::unique_ptr<LayerMirror> mirror_;  // Of them; null: none.
  int64_t batches_ = 0;
  std::optional<LayerReference> local_, synchronised_;
};

// The subjects that are layers, of one shape.
struct LayerSubjects {
  std::unique_ptr<BatchNorm> local, own_local, sync, split;
};

// layer.Time() of the one that is asked for. Errors: its own; that the library
// lacks the type is none, but turn.missing.
absl::StatusOr<RankTurn> TimeSubject(SyncBnLayer& layer,
                                     const LayerSubjects& subjects,
                                     const SyncBnRequest& request,
                                     CallTiming& timing);

// Calls `pass` after all ranks of `group` have met, and returns its times, with
// what it left in `timing`. Errors: of both.
absl::StatusOr<CallTimes> TimeCall(Communicator& group, CallTiming& timing,
                                   const std::function<absl::Status()>& pass);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_LAYER_H_
