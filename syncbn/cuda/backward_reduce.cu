// The sums that backward needs, in one pass: of g, and of g * (x - mean), which
// is multiplied by the inverse deviation at the end. Every element is read
// once, 16 bytes an access.
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/buffer.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/backward_reduce.h"
#include "syncbn/cuda/channel_reduction.h"
#include "syncbn/cuda/record_view.h"
#include "syncbn/cuda/relu_gradient.h"
#include "syncbn/cuda/type_switch.h"
#include "syncbn/cuda/vector_access.h"

namespace lockstep {
namespace {

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
  RecordView<const float> saved;
  int64_t channels;
  float* sums;
  float* dweight;
  float* dbias;
};

template <typename T>
ChannelReduction<SumsReduction<T>> MakeReduction(
    const BatchNormKernels::BackwardCall& call) {
  const void* const tensors[] = {call.x.data, call.relu ? call.y.data : nullptr,
                                 call.dy.data};
  return {call.shape, tensors};
}

}  // namespace

absl::StatusOr<int64_t> BackwardReduceScratchBytes(
    const BatchNormKernels::BackwardCall& call) {
  int64_t bytes = 0;
  LOCKSTEP_RETURN_IF_ERROR(SwitchType(call.x.type, [&]<typename T>(T) {
    bytes = MakeReduction<T>(call).scratch_bytes();
    return absl::OkStatus();
  }));
  return bytes;
}

absl::Status BackwardReduce(const BatchNormKernels::BackwardCall& call,
                            Buffer sums, Buffer dweight, Buffer dbias,
                            std::byte* scratch, cudaStream_t stream) {
  return SwitchType(call.x.type, [&]<typename T>(T) {
    const SumsReduction<T> reduction = {
        .x = static_cast<const T*>(call.x.data),
        .y = call.relu ? static_cast<const T*>(call.y.data) : nullptr,
        .dy = static_cast<const T*>(call.dy.data),
        .saved = ViewRecord<const float>(call.saved, call.shape.c),
        .channels = call.shape.c,
        .sums = static_cast<float*>(sums.data),
        .dweight = PointerOrNull<float>(dweight),
        .dbias = PointerOrNull<float>(dbias)};
    return MakeReduction<T>(call).Run(reduction, scratch, stream,
                                      "BackwardReduce launch");
  });
}

}  // namespace lockstep
