// A batch norm layer on one rank: its reference outputs in float64, its memory
// on the host and where it runs, its timed passes, and timers around its
// kernels and messages.
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

// The layer's outputs for LayerInputs, without ReLU and residual.
struct LayerOutputs {
  ConstBuffer y;
  ConstBuffer dx;
  std::span<const float> dweight;
  std::span<const float> dbias;
};

// The reference of a layer: statistics of the whole batch by channel, and the
// layer's sums over it. Every element is compared with the value that follows
// from these.
//
// Let u = 2^-24, n the number of values per channel, and rms the root of a mean
// of squares. The error of a sum of n terms in float32 is a random walk of n
// roundings. Its standard deviation is at most u sqrt(n) times the terms'
// magnitude. k = 8 sqrt(n) + 16 allows eight standard deviations, and the
// operations after the sum. The tolerances are
//   mean:               k u rms(x), and the inverse deviation, relative: k u
//   y:                  k u (|weight| (rms(x) inv + |normalised|) + |bias|)
//   dx, over weight inv: k u (|dy| + rms(dy) (1 + |normalised|) (2 + rms(x)
//                       inv))
//   dbias: k u n rms(dy);  dweight: 4 k u n rms(dy) (1 + rms(x) inv)
// and for values rounded to the type its unit round-off in addition. NaN is
// wrong.
class LayerReference {
 public:
  // Makes the reference for the batches of all ranks of `group`, which sum in
  // float64, or without a group for this rank's own batch. Reads the inputs
  // twice. Error: the group's.
  static absl::StatusOr<LayerReference> Create(const LayerInputs& inputs,
                                               double epsilon,
                                               Communicator* group);

  // Returns the number of wrong elements in all outputs. inputs: those of
  // Create.
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

// The state that the timers of one rank write to. Not thread safe.
struct CallTiming {
  double (*clock)() = nullptr;  // SteadySeconds, or a test's clock.
  CallTimes call;               // Kernels and messages of the call so far.
};

// Kernels with a timer around each one that takes time. Borrows the kernels and
// the timing.
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

// A group that notes when this rank enters and leaves each message. Borrows the
// group and the timing. Thread safety: the group's, and one thread at a time.
class TimedCommunicator : public ForwardingCommunicator {
 public:
  TimedCommunicator(Communicator& group, CallTiming& timing)
      : ForwardingCommunicator(group), timing_(timing) {}

  absl::Status Run(const Collective& call) override;

 private:
  CallTiming& timing_;
};

// Calls `pass` after all ranks of `group` have met. Returns the call's times,
// with those that timers wrote to `timing`. Errors: the group's and the pass's.
absl::StatusOr<CallTimes> TimeCall(Communicator& group, CallTiming& timing,
                                   absl::FunctionRef<absl::Status()> pass);

// Runs a turn: calls of `forward`, each followed by one of `backward` unless
// that is null. The first request.warmup calls do not count; the next
// request.iterations do.
using TimedPass = std::function<absl::Status()>;
absl::StatusOr<RankTurn> TimeCalls(const SyncBnRequest& request,
                                   Communicator& group, CallTiming& timing,
                                   const TimedPass& forward,
                                   const TimedPass& backward = nullptr);

// The messages that SyncBatchNorm sends at `layer`, forward and backward, and
// nothing else, over `messages`, which is borrowed. records: uint8, RecordBytes
// for each rank; sums: float32 [2 c]. Both lie where `messages` takes its
// buffers.
struct MessagePasses {
  TimedPass forward, backward;
};
int64_t RecordBytes(const LayerSpec& spec);
MessagePasses MessagesOf(const LayerSpec& layer, Communicator& messages,
                         Buffer records, Buffer sums);

// Device memory in several sets, whose parts are copies of host memory; and the
// clock of the calls on it.
class LayerMirror {
 public:
  using SetPass = std::function<absl::Status(int set)>;

  virtual ~LayerMirror() = default;

  // Gives every set device memory for `host`, which must outlive this object.
  virtual void Add(std::span<float> host) = 0;
  // Returns the device memory in `set` of the part that begins at `host`. Valid
  // from Upload to Release.
  virtual void* Of(const float* host, int set) const = 0;

  // Upload copies all parts from the host to every set, and allocates the sets'
  // memory if there is none. Download copies one set back. Both return when
  // done.
  virtual absl::Status Upload() = 0;
  virtual absl::Status Download(int set) = 0;
  // Frees the device's memory.
  virtual void Release() = 0;

  // Runs a turn of calls that take turns on the sets and end on the last set. A
  // lap is forward on all sets, then backward on all sets. There are as many
  // laps as give at least request.iterations of each pass. A lap's two times
  // are each the mean of its calls; for kSplit each call has its own time.
  // Errors: the passes' and the device's.
  virtual absl::StatusOr<RankTurn> Time(const SyncBnRequest& request,
                                        const SetPass& forward,
                                        const SetPass& backward) = 0;
  // Returns the number of sets, at least 1.
  virtual int sets() const = 0;
};

// Returns the options of all subjects' layers at a shape: the default
// BatchNormOptions.
BatchNormOptions OptionsOf(const LayerSpec& spec);

// One rank's inputs and outputs of one layer, in host memory. A layer that runs
// on a device also has a mirror there. Each rank's inputs are its own numbers,
// about its own means: if a rank uses the statistics of its own batch instead
// of all ranks', every output is wrong. Not thread safe.
class SyncBnLayer {
 public:
  // Fills the inputs and computes the references. Collective. Borrows the
  // group, whose memory is the host's. mirror: an empty one; if it is null, the
  // layer runs on the host. Errors: the group's and the mirror's.
  static absl::StatusOr<std::unique_ptr<SyncBnLayer>> Create(
      const LayerSpec& spec, Communicator& group,
      std::unique_ptr<LayerMirror> mirror = nullptr);

  // Runs forward and backward `warmup` times, then `iterations` times under the
  // clock. The ranks meet before each pass, or as the mirror does it. Then it
  // checks the outputs of the last passes. `timing` is where the layer's
  // timers, if any, write on the host. Collective. Errors: the layer's, the
  // group's and the mirror's.
  absl::StatusOr<RankTurn> Time(BatchNorm& layer, bool synchronised,
                                const SyncBnRequest& request,
                                CallTiming& timing);

  // The parts of Time. Prepare overwrites an earlier turn's outputs. Forward
  // and Backward run a pass on a set (0 without a mirror). CountWrong returns
  // the number of elements that the last passes on that set left wrong.
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
  // Returns `memory` where the layer runs, in that set.
  Buffer Placed(AlignedBuffer& memory, int64_t count, DataType type,
                int set) const;
  Buffer PlacedTensor(AlignedBuffer& memory, int set) const;
  Buffer PlacedChannels(AlignedBuffer& memory, int set) const;
  // Returns `memory` on the host.
  ConstBuffer Tensor(const AlignedBuffer& memory) const;

  const LayerSpec spec_;
  Communicator& group_;
  AlignedBuffer x_, dy_, y_, dx_;  // Elements have the layer's type.
  AlignedBuffer weight_, bias_, dweight_, dbias_, mean_, variance_, saved_;
  const std::unique_ptr<LayerMirror> mirror_;  // Mirrors them; may be null.
  int64_t batches_ = 0;
  std::optional<LayerReference> local_, synchronised_;
};

// The subjects that are layers, of one shape.
struct LayerSubjects {
  std::unique_ptr<BatchNorm> local, own_local, sync, split;

  // Makes the subjects. `local` is the library's layer. The others run on the
  // kernels and the group; `split` runs on those with timers. All are borrowed.
  // Errors: SyncBatchNorm's.
  static absl::StatusOr<LayerSubjects> Create(const BatchNormOptions& options,
                                              std::unique_ptr<BatchNorm> local,
                                              BatchNormKernels& kernels,
                                              Communicator& group,
                                              BatchNormKernels& timed_kernels,
                                              Communicator& timed_group);

  // Runs layer.Time() of the subject that is asked for. Errors: its own. If the
  // library lacks the type, that is not an error: turn.missing says so.
  absl::StatusOr<RankTurn> Time(SyncBnLayer& layer,
                                const SyncBnRequest& request,
                                CallTiming& timing) const;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_LAYER_H_
