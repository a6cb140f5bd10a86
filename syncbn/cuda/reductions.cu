// The reductions of batch norm: moments forward, sums backward. Every element
// is read once, 16 bytes an access.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/kernel_operands.h"
#include "syncbn/cuda/partition.h"
#include "syncbn/cuda/reduction_kernels.h"

namespace lockstep {
namespace {

// A reduction of tensors of one shape: how they are cut, and for how much
// scratch memory that asks.
template <typename Reduction>
class ChannelReduction {
 public:
  ChannelReduction(const ActivationShape& shape,
                   std::span<const void* const> tensors)
      : shape_(Canonical(shape)) {
    constexpr int kWide = kVectorSize<Element>;
    const int64_t past = ElementsPastBoundary(tensors, sizeof(Element), kWide);
    wide_ = past >= 0;
    const int size = wide_ ? kWide : 1;
    if (shape_.layout == Layout::kNchw) {
      planes_ =
          CutPlanes(shape_, wide_ ? past : 0, size, Reduction::kPlanesUnroll);
      partials_ = PartialsOf(planes_);
    } else {
      rows_ = CutRows(shape_, wide_ ? past : 0, size, Reduction::kRowsUnroll);
      partials_ = PartialsOf(rows_, size);
    }
  }

  int64_t scratch_bytes() const {
    return partials_.splits * partials_.columns *
           static_cast<int64_t>(sizeof(Partial));
  }

  // scratch: device memory [scratch_bytes], aligned to 16. Only enqueues.
  absl::Status Run(const Reduction& reduction, std::byte* scratch,
                   cudaStream_t stream, absl::string_view what) const {
    Partial* const partials = reinterpret_cast<Partial*>(scratch);
    cudaLaunchConfig_t config = {};
    config.stream = stream;
    const auto launch = [&](auto kernel, const auto& cut) {
      return CudaStatus(
          cudaLaunchKernelEx(&config, kernel, cut, reduction, partials), what);
    };
    if (partials_.splits > 0) {
      const bool planes = shape_.layout == Layout::kNchw;
      config.gridDim =
          dim3(static_cast<unsigned>(planes ? planes_.c : rows_.tiles),
               static_cast<unsigned>(partials_.splits));
      config.blockDim = dim3(static_cast<unsigned>(
          planes ? planes_.threads : rows_.width * rows_.height));
      constexpr int kWide = kVectorSize<Element>;
      LOCKSTEP_RETURN_IF_ERROR(
          planes ? (wide_ ? launch(PlanesKernel<kWide, Reduction>, planes_)
                          : launch(PlanesKernel<1, Reduction>, planes_))
                 : (wide_ ? launch(RowsKernel<kWide, Reduction>, rows_)
                          : launch(RowsKernel<1, Reduction>, rows_)));
    }
    config.gridDim = dim3(static_cast<unsigned>(shape_.c));
    config.blockDim = dim3(static_cast<unsigned>(partials_.threads));
    return launch(PartialsKernel<Reduction>, partials_);
  }

 private:
  using Element = typename Reduction::Element;
  using Partial = typename Reduction::template State<1>;

  ActivationShape shape_;
  bool wide_ = true;
  PlanesPartition planes_;
  RowsPartition rows_;
  PartialsPartition partials_;
};

// Count, mean and M2 of each channel in one pass: a thread takes the mean of a
// tile of values that it holds in registers, then their squared deviations from
// it, and merges tiles by MergeMoments, as blocks merge threads and the last
// kernel blocks.

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

  // Tiles of 16 values of a channel, since more cost the registers that let
  // other threads run. Two or four loads of 16 bytes each from some 1,000
  // threads are 32 to 64 KiB in flight; a multiprocessor's share of memory's
  // bandwidth times its latency is about 20.
  static constexpr int kPlanesUnroll = 16 / kVectorSize<T>;
  static constexpr int kRowsUnroll = 4;

  __device__ float Center(int64_t) const { return 0; }

  template <int kSize>
  __device__ void Load(int64_t place, const float*, Item* items) const {
    const Vector<T, kSize> in = LoadVector<kSize>(x + place);
#pragma unroll
    for (int k = 0; k < kSize; ++k) items[k] = ToFloat(in.elements[k]);
  }

  template <int kChannels, int kItems>
  __device__ static void AddTile(State<kChannels>& state, int k,
                                 const Item (&items)[kItems],
                                 const bool (&valid)[kItems], int n) {
    if (n == 0) return;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) sum += valid[i] ? items[i] : 0;
    const float mean = sum / static_cast<float>(n);
    float m2 = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const float deviation = valid[i] ? items[i] - mean : 0;
      m2 += deviation * deviation;
    }
    SetMerged(state, k, {state.count, state.mean[k], state.m2[k]},
              {n, mean, m2});
  }

  template <int kChannels>
  __device__ static void AddCount(State<kChannels>& state, int n) {
    state.count += n;
  }

  template <int kChannels>
  __device__ static void Merge(State<kChannels>& a, const State<kChannels>& b) {
#pragma unroll
    for (int k = 0; k < kChannels; ++k) {
      SetMerged(a, k, {a.count, a.mean[k], a.m2[k]},
                {b.count, b.mean[k], b.m2[k]});
    }
    a.count += b.count;
  }

  template <int kChannels>
  __device__ static State<1> Part(const State<kChannels>& state, int k) {
    return {state.count, {state.mean[k]}, {state.m2[k]}};
  }

  __device__ void Store(int64_t channel, const State<1>& state) const {
    if (channel == 0) StartRecord(record, channels, state.count);
    record.mean[channel] = state.mean[0];
    record.second[channel] = state.m2[0];
  }

  const T* x;
  RecordPointers<float> record;
  int64_t channels;

 private:
  template <int kChannels>
  __device__ static void SetMerged(State<kChannels>& state, int k,
                                   const Moments<float>& a,
                                   const Moments<float>& b) {
    const Moments<float> both = MergeMoments(a, b);
    state.mean[k] = both.mean;
    state.m2[k] = both.m2;
  }
};

// The sums that backward needs, in one pass: of g, and of g * (x - mean), which
// is multiplied by the inverse deviation at the end.

// The sums of N channels.
template <int kChannels>
struct SumsState {
  float gradient[kChannels];
  float product[kChannels];  // Of g and x - mean.
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

  // Of two or three tensors each: as many loads as statistics have, or more.
  static constexpr int kPlanesUnroll = 2;
  static constexpr int kRowsUnroll = 2;

  __device__ float Center(int64_t channel) const { return saved.mean[channel]; }

  template <int kSize>
  __device__ void Load(int64_t place, const float* centers, Item* items) const {
    const Vector<T, kSize> in = LoadVector<kSize>(x + place);
    const Vector<T, kSize> gradient = LoadVector<kSize>(dy + place);
    Vector<T, kSize> output = {};
    if (y != nullptr) output = LoadVector<kSize>(y + place);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float g = ToFloat(gradient.elements[k]);
      items[k].gradient =
          y == nullptr ? g : ReluGradient(g, ToFloat(output.elements[k]));
      items[k].centered = ToFloat(in.elements[k]) - centers[k];
    }
  }

  template <int kChannels, int kItems>
  __device__ static void AddTile(State<kChannels>& state, int k,
                                 const Item (&items)[kItems],
                                 const bool (&valid)[kItems], int) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!valid[i]) continue;
      state.gradient[k] += items[i].gradient;
      state.product[k] += items[i].gradient * items[i].centered;
    }
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

absl::Status CudaBatchNormKernels::ComputeMoments(const ActivationShape& shape,
                                                  ConstBuffer x,
                                                  std::byte* record) {
  return SwitchType(x.type, [&]<typename T>(T) {
    const MomentsReduction<T> reduction = {
        .x = static_cast<const T*>(x.data),
        .record = PointersOf<float>(record, shape.c),
        .channels = shape.c};
    const void* const tensors[] = {x.data};
    const ChannelReduction<MomentsReduction<T>> cut(shape, tensors);
    LOCKSTEP_RETURN_IF_ERROR(Reserve(cut.scratch_bytes()));
    return cut.Run(reduction, scratch_.get(), stream_, "ComputeMoments launch");
  });
}

absl::Status CudaBatchNormKernels::BackwardReduce(const BackwardCall& call) {
  return SwitchType(call.x.type, [&]<typename T>(T) {
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
    LOCKSTEP_RETURN_IF_ERROR(Reserve(cut.scratch_bytes()));
    return cut.Run(reduction, scratch_.get(), stream_, "BackwardReduce launch");
  });
}

}  // namespace lockstep
