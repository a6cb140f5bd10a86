// What a batch norm layer should have computed, in float64; a layer's memory on
// one rank, on the host and where it runs; its passes under the clock; and
// timers around its kernels and its messages.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_LAYER_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_LAYER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep::benchmarks {

// The inputs of a layer on one rank, in host memory: x and dy of one activation
// type other than float64; weight and bias [c].
struct LayerInputs {
  ActivationShape shape;
  ConstBuffer x;
  ConstBuffer dy;
  std::span<const float> weight;
  std::span<const float> bias;
};

// What it computed from them, without ReLU and residual.
struct LayerOutputs {
  ConstBuffer y;
  ConstBuffer dx;
  std::span<const float> dweight;
  std::span<const float> dbias;
};

// Statistics of the whole batch by channel, and what the layer's sums over it
// are. Every element is compared with what follows from those.
//
// With u = 2^-24, n values per channel, and rms the root of a mean of squares:
// the error of a sum of n terms in float32 is a random walk of n roundings, of
// standard deviation u sqrt(n) times the terms' magnitude at most; k = 8
// sqrt(n) + 16 allows eight of those, and the operations after it. So
//   mean:               k u rms(x), and the inverse deviation, relative: k u
//   y:                  k u (|weight| (rms(x) inv + |normalised|) + |bias|)
//   dx, over weight inv: k u (|dy| + rms(dy) (1 + |normalised|) (2 + rms(x)
//                       inv))
//   dbias: k u n rms(dy);  dweight: 4 k u n rms(dy) (1 + rms(x) inv)
// and the unit round-off of the type for what is rounded to it. NaN is wrong.
class LayerReference {
 public:
  // Of the batches of all ranks of `group`, which sum in float64, or without a
  // group of this rank's own. Reads the inputs twice. Error: the group's.
  static absl::StatusOr<LayerReference> Create(const LayerInputs& inputs,
                                               double epsilon,
                                               Communicator* group);

  // The elements of all outputs that are not right. inputs: those of Create.
  int64_t CountWrong(const LayerInputs& inputs,
                     const LayerOutputs& outputs) const;

 private:
  struct Channel {
    double mean = 0, inverse = 0, rms_x = 0;
    // Means over the whole batch: of dy, of dy * normalised, of dy squared.
    double mean_dy = 0, mean_dy_normalised = 0, rms_dy = 0;
    // Sums over this rank's part: of dy, of dy * normalised.
    double own_dy = 0, own_dy_normalised = 0;
  };

  template <typename T>
  int64_t CountWrongElements(const LayerInputs& inputs,
                             const LayerOutputs& outputs) const;
  int64_t CountWrongGradients(const LayerOutputs& outputs) const;

  std::vector<Channel> channels_;
  double values_ = 0;  // Per channel, in the whole batch.
};

// Where the timers of one rank write. Not thread safe.
struct CallTiming {
  double (*clock)() = nullptr;  // SteadySeconds, or a test's.
  CallTimes call;               // The kernels and messages of the call so far.
};

// Kernels with a timer around each that takes time. Borrows both.
class TimedKernels : public BatchNormKernels {
 public:
  TimedKernels(BatchNormKernels& kernels, CallTiming& timing)
      : kernels_(kernels), timing_(timing) {}

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override {
    return kernels_.Allocate(bytes);
  }
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override {
    return Time(TimedKernel::kMoments,
                [&] { return kernels_.ComputeMoments(shape, x, record); });
  }
  absl::Status Merge(const MergeCall& call) override {
    return Time(TimedKernel::kMerge, [&] { return kernels_.Merge(call); });
  }
  absl::StatusOr<int64_t> ReadCount(const std::byte* saved) override {
    return kernels_.ReadCount(saved);
  }
  absl::Status UseRunning(const RunningCall& call) override {
    return kernels_.UseRunning(call);
  }
  absl::Status Normalize(const NormalizeCall& call) override {
    return Time(TimedKernel::kNormalize,
                [&] { return kernels_.Normalize(call); });
  }
  absl::Status BackwardReduce(const BackwardCall& call) override {
    return Time(TimedKernel::kBackwardReduce,
                [&] { return kernels_.BackwardReduce(call); });
  }
  absl::Status BackwardInput(const BackwardCall& call) override {
    return Time(TimedKernel::kBackwardInput,
                [&] { return kernels_.BackwardInput(call); });
  }

 protected:
  // Runs a kernel that is done when it returns, and adds its time to the
  // call's. Error: the kernel's.
  virtual absl::Status Time(TimedKernel kernel,
                            absl::FunctionRef<absl::Status()> run);

  void AddSeconds(TimedKernel kernel, double seconds) {
    timing_.call.kernels[static_cast<size_t>(kernel)] += seconds;
  }

 private:
  BatchNormKernels& kernels_;
  CallTiming& timing_;
};

// A group that notes when this rank enters and leaves each message. Borrows
// both. Thread safety: the group's, and one thread at a time.
class TimedCommunicator : public ForwardingCommunicator {
 public:
  TimedCommunicator(Communicator& group, CallTiming& timing)
      : ForwardingCommunicator(group), timing_(timing) {}

  absl::Status Run(const Collective& call) override;

 private:
  CallTiming& timing_;
};

// Calls `pass` after all ranks of `group` have met, and returns its times, with
// what it left in `timing`. Errors: of both.
absl::StatusOr<CallTimes> TimeCall(Communicator& group, CallTiming& timing,
                                   absl::FunctionRef<absl::Status()> pass);

// The turn of calls of `forward`, each followed by one of `backward` if that is
// not null: request.warmup of them, then request.iterations that count.
using TimedPass = std::function<absl::Status()>;
absl::StatusOr<RankTurn> TimeCalls(const SyncBnRequest& request,
                                   Communicator& group, CallTiming& timing,
                                   const TimedPass& forward,
                                   const TimedPass& backward = nullptr);

// Nothing but the messages that SyncBatchNorm sends at `layer`, forward and
// backward, over `messages`, which is borrowed. records: uint8, as many bytes
// as RecordBytes for each rank; sums: float32 [2 c]; both where `messages`
// takes its buffers.
struct MessagePasses {
  TimedPass forward, backward;
};
int64_t RecordBytes(const LayerSpec& spec);
MessagePasses MessagesOf(const LayerSpec& layer, Communicator& messages,
                         Buffer records, Buffer sums);

// Memory of a device, each part of which is a copy of host memory, in several
// sets; and the clock of the calls on it.
class LayerMirror {
 public:
  using SetPass = std::function<absl::Status(int set)>;

  virtual ~LayerMirror() = default;

  // Every set is to have device memory for `host`, which outlives this.
  virtual void Add(std::span<float> host) = 0;
  // That memory in that set, of what begins at `host`; from Upload to Release.
  virtual void* Of(const float* host, int set) const = 0;

  // Copy all from the host to every set, whose memory they allocate if there is
  // none, and one set back; return when it is done.
  virtual absl::Status Upload() = 0;
  virtual absl::Status Download(int set) = 0;
  // Frees the device's memory.
  virtual void Release() = 0;

  // The turn of calls that take turns on the sets and end on the last one:
  // forward on all sets, then backward on all sets, which is a lap, and so on,
  // at least request.iterations of each. Each of a lap's two times is the mean
  // of its calls; of kSplit each call has its own. Errors: the passes' and the
  // device's.
  virtual absl::StatusOr<RankTurn> Time(const SyncBnRequest& request,
                                        const SetPass& forward,
                                        const SetPass& backward) = 0;
  // How many there are, at least 1.
  virtual int sets() const = 0;
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
  // clock, the ranks meeting before each of the passes, or as the mirror has
  // it; then checks what the last left. `timing` is where the layer's timers
  // write on the host, if it has any. Collective. Errors: the layer's, the
  // group's and the mirror's.
  absl::StatusOr<RankTurn> Time(BatchNorm& layer, bool synchronised,
                                const SyncBnRequest& request,
                                CallTiming& timing);

  // The parts of that. Leaves nothing of an earlier turn's outputs; runs a
  // pass on a set (0 without a mirror); the elements that the last passes on
  // that set left wrong.
  absl::Status Prepare();
  absl::Status Forward(BatchNorm& layer, int set);
  absl::Status Backward(BatchNorm& layer, int set);
  absl::StatusOr<int64_t> CountWrong(bool synchronised, int set);

  // Frees the mirror's memory until the next turn.
  void Release() { mirror_->Release(); }

  const LayerSpec& spec() const { return spec_; }

 private:
  SyncBnLayer(const LayerSpec& spec, Communicator& group,
              std::unique_ptr<LayerMirror> mirror);

  std::array<AlignedBuffer*, 11> AllMemory();
  void FillInputs();
  LayerInputs Inputs() const;
  LayerOutputs Outputs() const;
  // `memory` where the layer runs, in that set.
  Buffer Placed(AlignedBuffer& memory, int64_t count, DataType type,
                int set) const;
  Buffer PlacedTensor(AlignedBuffer& memory, int set) const;
  Buffer PlacedChannels(AlignedBuffer& memory, int set) const;
  // `memory` on the host.
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

  // `local` is the library's; the others run on the kernels and the group, the
  // last one on those with timers. All are borrowed. Errors: SyncBatchNorm's.
  static absl::StatusOr<LayerSubjects> Create(const BatchNormOptions& options,
                                              std::unique_ptr<BatchNorm> local,
                                              BatchNormKernels& kernels,
                                              Communicator& group,
                                              BatchNormKernels& timed_kernels,
                                              Communicator& timed_group);

  // layer.Time() of the one that is asked for. Errors: its own; that the
  // library lacks the type is none, but turn.missing.
  absl::StatusOr<RankTurn> Time(SyncBnLayer& layer,
                                const SyncBnRequest& request,
                                CallTiming& timing) const;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_LAYER_H_
