#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/cuda_launch.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/kernel_operands.h"
#include "syncbn/cuda/partition.h"
#include "syncbn/cuda/reduction_kernels.h"
#include "syncbn/cuda/reductions.h"

namespace lockstep {
namespace {

// A reduction of tensors of one shape: the partition of the tensors and the
// size of the scratch memory.
template <typename Reduction>
class ChannelReduction {
 public:
  ChannelReduction(const ActivationShape& shape,
                   std::span<const void* const> tensors)
      : shape_(CanonicalShape(shape)) {
    constexpr int kWide = kVectorSize<Element>;
    const int64_t past = ElementsPastBoundary(tensors, sizeof(Element), kWide);
    wide_ = past >= 0;
    const int size = wide_ ? kWide : 1;
    if (shape_.layout == Layout::kNchw) {
      planes_ = CutPlanes(shape_, wide_ ? past : 0, size, Reduction::kUnroll);
      merge_ = PartialsOf(planes_);
    } else {
      rows_ = CutRows(shape_, wide_ ? past : 0, size, Reduction::kUnroll);
      merge_ = PartialsOf(rows_, size, Reduction::kMergeUnroll);
    }
  }

  static absl::Status Load() {
    constexpr int kWide = kVectorSize<Element>;
    return LoadKernels(PlanesKernel<kWide, true, Reduction>,
                       PlanesKernel<kWide, false, Reduction>,
                       PlanesKernel<1, true, Reduction>,
                       RowsKernel<kWide, Reduction>, RowsKernel<1, Reduction>,
                       PartialsKernel<Reduction>);
  }

  int64_t scratch_bytes() const {
    return (merge_.splits + merge_.groups) * merge_.columns *
           static_cast<int64_t>(sizeof(Partial));
  }

  // scratch: device memory [scratch_bytes], aligned to 16. tickets: device
  // memory [kTickets], which is 0 before and after. Only enqueues.
  absl::Status Run(const Reduction& reduction, std::byte* scratch,
                   std::byte* tickets, cudaStream_t stream,
                   absl::string_view what) const {
    Partial* const partials = reinterpret_cast<Partial*>(scratch);
    const Scratch<Partial> memory = {
        .partials = partials,
        .group_results = partials + merge_.splits * merge_.columns,
        .tickets = reinterpret_cast<unsigned*>(tickets)};
    cudaLaunchConfig_t config = {};
    config.stream = stream;
    if (merge_.splits > 0) {
      LOCKSTEP_RETURN_IF_ERROR(
          CudaStatus(LaunchBlocks(config, reduction, memory), what));
    }
    if (merge_.groups > 0) return absl::OkStatus();
    config.gridDim = dim3(static_cast<unsigned>(shape_.c));
    config.blockDim = dim3(static_cast<unsigned>(merge_.threads));
    return CudaStatus(cudaLaunchKernelEx(&config, PartialsKernel<Reduction>,
                                         merge_, reduction, partials),
                      what);
  }

 private:
  using Element = typename Reduction::Element;
  using Partial = typename Reduction::template State<1>;

  cudaError_t LaunchBlocks(cudaLaunchConfig_t config,
                           const Reduction& reduction,
                           const Scratch<Partial>& scratch) const {
    constexpr int kWide = kVectorSize<Element>;
    const bool planes = shape_.layout == Layout::kNchw;
    config.gridDim =
        dim3(static_cast<unsigned>(planes ? planes_.c : rows_.tiles),
             static_cast<unsigned>(merge_.splits));
    config.blockDim = dim3(static_cast<unsigned>(
        planes ? planes_.threads : rows_.width * rows_.height));
    const auto launch = [&](auto kernel, const auto& cut) {
      return cudaLaunchKernelEx(&config, kernel, cut, merge_, reduction,
                                scratch);
    };
    return !planes  ? (wide_ ? launch(RowsKernel<kWide, Reduction>, rows_)
                             : launch(RowsKernel<1, Reduction>, rows_))
           : !wide_ ? launch(PlanesKernel<1, true, Reduction>, planes_)
           : planes_.whole
               ? launch(PlanesKernel<kWide, true, Reduction>, planes_)
               : launch(PlanesKernel<kWide, false, Reduction>, planes_);
  }

  ActivationShape shape_;
  bool wide_ = true;
  PlanesPartition planes_;
  RowsPartition rows_;
  PartialsPartition merge_;
};

// Computes count, mean and M2 of each channel in one pass. The first values of
// a thread are taken in two passes over registers: first their mean, then their
// deviations from it. Afterwards there are n0 values with mean K, and a tile of
// n values enters by the sums S1 = sum (x - K) and S2 = sum (x - K)^2:
//
//   mean = K + S1 / (n0 + n),  M2 = M2 + S2 - S1^2 / (n0 + n).
//
// The merge of Chan, Golub & LeVeque (MergeMoments) gives the same for a tile
// with mean K + S1 / n and M2 = S2 - S1^2 / n. Nothing cancels: by Cauchy and
// Schwarz S1^2 <= n S2, so at least the part n0 / (n0 + n) of S2 is left. That
// is a fifth of it in the first tile and more in each later tile. There is one
// division for all channels of a tile. Blocks merge threads, and the last
// blocks merge blocks, as MergeMoments does.

// The moments of N channels that have the same count.
template <int kChannels>
struct MomentsState {
  int64_t count;
  float mean[kChannels];
  float m2[kChannels];
};

template <typename T>
struct MomentsReduction {
  using Element = T;
  using Item = float;
  template <int kChannels>
  using State = MomentsState<kChannels>;

  // Tiles have 4 values of each channel for channels last, otherwise 16 or 32
  // values of one channel.
  static constexpr int kUnroll = 4;
  // More would take more registers than the loop over the tensor.
  static constexpr int kMergeUnroll = 4;

  __device__ float Center(int64_t) const { return 0; }

  template <int kSize>
  __device__ void Load(int64_t place, const float (&)[kSize], bool wanted,
                       Item (&items)[kSize]) const {
    Vector<T, kSize> raw = {};
    if (wanted) raw = LoadVector<kSize>(x + place);
    Widen(raw, items);
  }

  template <int kChannels>
  __device__ static bool Started(const State<kChannels>& state, int n) {
    return state.count >= n;
  }

  template <int kChannels, int kItems, typename Valid>
  __device__ static void AddFirst(State<kChannels>& state, int k,
                                  const Item (&items)[kItems],
                                  const Valid& valid, int n) {
    const auto size = static_cast<float>(n);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (valid[i]) sum += items[i];
    }
    const float mean = sum / size;
    float m2 = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const float deviation = items[i] - mean;
      if (valid[i]) m2 += deviation * deviation;
    }
    const float before = CountOf(state);
    const float share = size / (before + size);
    MergeInto(state, k, mean, m2, share, before * share);
  }

  template <int kChannels, int kItems, typename Valid>
  __device__ static void AddTile(State<kChannels>& state, int k,
                                 const Item (&items)[kItems],
                                 const Valid& valid, int n) {
    // A single chain of additions would make each wait for the one before.
    constexpr int kChain = 8;
    constexpr int kChains = (kItems + kChain - 1) / kChain;
    float sums[kChains] = {};
    float squares[kChains] = {};
    const float mean = state.mean[k];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const float deviation = items[i] - mean;
      if (!valid[i]) continue;
      sums[i / kChain] += deviation;
      squares[i / kChain] += deviation * deviation;
    }
#pragma unroll
    for (int j = 1; j < kChains; ++j) {
      sums[0] += sums[j];
      squares[0] += squares[j];
    }
    const float inverse = 1 / (CountOf(state) + static_cast<float>(n));
    const float step = sums[0] * inverse;
    state.mean[k] += step;
    state.m2[k] += squares[0] - sums[0] * step;
  }

  template <int kChannels>
  __device__ static void AddCount(State<kChannels>& state, int n) {
    state.count += n;
  }

  template <int kChannels>
  __device__ static void Merge(State<kChannels>& a, const State<kChannels>& b) {
    if (b.count == 0) return;
    const int64_t count = a.count + b.count;
    const float share = static_cast<float>(b.count) / static_cast<float>(count);
    const float product = static_cast<float>(a.count) * share;
#pragma unroll
    for (int k = 0; k < kChannels; ++k) {
      MergeInto(a, k, b.mean[k], b.m2[k], share, product);
    }
    a.count = count;
  }

  template <int kChannels>
  __device__ static State<1> Part(const State<kChannels>& state, int k) {
    return {state.count, {state.mean[k]}, {state.m2[k]}};
  }

  __device__ void Store(int64_t channel, const State<1>& state) const {
    if (merges) {
      StoreBatch(outputs, channels, channel,
                 {state.count, state.mean[0], state.m2[0]});
      return;
    }
    if (channel == 0) StartRecord(record, channels, state.count);
    record.mean[channel] = state.mean[0];
    record.second[channel] = state.m2[0];
  }

  const T* x;
  RecordPointers<float> record;
  int64_t channels;
  // Whether there is no other rank, so that the moments are the batch's.
  bool merges;
  BatchOutputs outputs;

 private:
  // Returns a thread's count, which fits 32 bits; these convert in one
  // instruction.
  template <int kChannels>
  __device__ static float CountOf(const State<kChannels>& state) {
    return static_cast<float>(static_cast<int>(state.count));
  }

  // Merges as MergeMoments does, without its divisions. If the state is empty,
  // `product` is 0. It is the first factor, so that it is not multiplied by a
  // square that has overflowed.
  template <int kChannels>
  __device__ static void MergeInto(State<kChannels>& state, int k, float mean,
                                   float m2, float share, float product) {
    const float delta = mean - state.mean[k];
    state.mean[k] += delta * share;
    state.m2[k] += m2 + delta * (delta * product);
  }
};

// The sums that backward needs, in one pass: the sum of g, and the sum of g *
// (x - mean), which is multiplied by the inverse deviation at the end.

// The sums of N channels.
template <int kChannels>
struct SumsState {
  float gradient[kChannels];
  float product[kChannels];  // The sum of g * (x - mean).
};

template <typename T>
struct SumsReduction {
  using Element = T;
  struct Item {
    float gradient;
    float centered;
  };
  template <int kChannels>
  using State = SumsState<kChannels>;

  // Each vector is loaded from two or three tensors, which is as many loads as
  // for statistics, or more.
  static constexpr int kUnroll = 2;
  static constexpr int kMergeUnroll = 8;

  __device__ float Center(int64_t channel) const { return saved.mean[channel]; }

  template <int kSize>
  __device__ void Load(int64_t place, const float (&centers)[kSize],
                       bool wanted, Item (&items)[kSize]) const {
    Vector<T, kSize> raw_x = {};
    Vector<T, kSize> raw_dy = {};
    Vector<T, kSize> raw_y = {};
    if (wanted) {
      raw_x = LoadVector<kSize>(x + place);
      raw_dy = LoadVector<kSize>(dy + place);
      if (y != nullptr) raw_y = LoadVector<kSize>(y + place);
    }
    float in[kSize];
    float gradient[kSize];
    float output[kSize];
    Widen(raw_x, in);
    Widen(raw_dy, gradient);
    Widen(raw_y, output);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      items[k].gradient =
          y == nullptr ? gradient[k] : ReluGradient(gradient[k], output[k]);
      items[k].centered = in[k] - centers[k];
    }
  }

  template <int kChannels>
  __device__ static bool Started(const State<kChannels>&, int) {
    return true;
  }

  template <int kChannels, int kItems, typename Valid>
  __device__ static void AddFirst(State<kChannels>& state, int k,
                                  const Item (&items)[kItems],
                                  const Valid& valid, int) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!valid[i]) continue;
      state.gradient[k] += items[i].gradient;
      state.product[k] += items[i].gradient * items[i].centered;
    }
  }

  template <int kChannels, int kItems, typename Valid>
  __device__ static void AddTile(State<kChannels>& state, int k,
                                 const Item (&items)[kItems],
                                 const Valid& valid, int n) {
    AddFirst(state, k, items, valid, n);
  }

  template <int kChannels>
  __device__ static void AddCount(State<kChannels>&, int) {}

  template <int kChannels>
  __device__ static void Merge(State<kChannels>& a, const State<kChannels>& b) {
#pragma unroll
    for (int k = 0; k < kChannels; ++k) {
      a.gradient[k] += b.gradient[k];
      a.product[k] += b.product[k];
    }
  }

  template <int kChannels>
  __device__ static State<1> Part(const State<kChannels>& state, int k) {
    return {{state.gradient[k]}, {state.product[k]}};
  }

  __device__ void Store(int64_t channel, const State<1>& state) const {
    const float of_weight = state.product[0] * saved.second[channel];
    sums[channel] = state.gradient[0];
    sums[channels + channel] = of_weight;
    if (dbias != nullptr) dbias[channel] = state.gradient[0];
    if (dweight != nullptr) dweight[channel] = of_weight;
  }

  const T* x;
  const T* y;  // Null without ReLU.
  const T* dy;
  RecordPointers<const float> saved;
  int64_t channels;
  float* sums;
  float* dweight;
  float* dbias;
};

}  // namespace

absl::StatusOr<ReductionMemory> ReductionMemory::Create(int64_t bytes,
                                                        cudaStream_t stream) {
  ReductionMemory memory;
  LOCKSTEP_RETURN_IF_ERROR(memory.Reserve(bytes));
  constexpr int64_t kTicketBytes = kTickets * int64_t{sizeof(unsigned)};
  LOCKSTEP_ASSIGN_OR_RETURN(memory.tickets_,
                            AllocateDeviceMemory(kTicketBytes));
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(memory.tickets_.get(), 0, kTicketBytes, stream),
      "cudaMemsetAsync"));
  return memory;
}

absl::Status ReductionMemory::Reserve(int64_t bytes) {
  if (bytes <= scratch_bytes_) return absl::OkStatus();
  const int64_t grown = std::max(bytes, 2 * scratch_bytes_);
  LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory, AllocateDeviceMemory(grown));
  scratch_.push_back(std::move(memory));
  scratch_bytes_ = grown;
  return absl::OkStatus();
}

absl::Status LoadReductionKernels() {
  return ForEveryType([]<typename T>(T) {
    absl::Status status = ChannelReduction<MomentsReduction<T>>::Load();
    status.Update(ChannelReduction<SumsReduction<T>>::Load());
    return status;
  });
}

absl::Status ReduceMomentsOnGpu(const ActivationShape& shape, ConstBuffer x,
                                std::byte* record,
                                const BatchNormKernels::MergeCall* merge,
                                ReductionMemory& memory, cudaStream_t stream) {
  return SwitchType(x.type, shape.layout, [&]<typename T>(T) {
    const MomentsReduction<T> reduction = {
        .x = static_cast<const T*>(x.data),
        .record = PointersOf<float>(record, shape.c),
        .channels = shape.c,
        .merges = merge != nullptr,
        .outputs = merge != nullptr ? OutputsOf(*merge) : BatchOutputs()};
    const void* const tensors[] = {x.data};
    const ChannelReduction<MomentsReduction<T>> cut(shape, tensors);
    LOCKSTEP_RETURN_IF_ERROR(memory.Reserve(cut.scratch_bytes()));
    return cut.Run(reduction, memory.scratch(), memory.tickets(), stream,
                   "ComputeMoments launch");
  });
}

absl::Status ReduceGradientsOnGpu(const BatchNormKernels::BackwardCall& call,
                                  ReductionMemory& memory,
                                  cudaStream_t stream) {
  return SwitchType(call.x.type, call.shape.layout, [&]<typename T>(T) {
    const SumsReduction<T> reduction = {
        .x = static_cast<const T*>(call.x.data),
        .y = call.relu ? static_cast<const T*>(call.y.data) : nullptr,
        .dy = static_cast<const T*>(call.dy.data),
        .saved = PointersOf<const float>(call.saved.bytes(), call.shape.c),
        .channels = call.shape.c,
        .sums = static_cast<float*>(call.sums.data),
        .dweight = PointerOrNull<float>(call.dweight),
        .dbias = PointerOrNull<float>(call.dbias)};
    const void* const tensors[] = {reduction.x, reduction.y, reduction.dy};
    const ChannelReduction<SumsReduction<T>> cut(call.shape, tensors);
    LOCKSTEP_RETURN_IF_ERROR(memory.Reserve(cut.scratch_bytes()));
    return cut.Run(reduction, memory.scratch(), memory.tickets(), stream,
                   "BackwardReduce launch");
  });
}

}  // namespace lockstep
