#include "models/cpu/weights.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/data_types.h"
#include "base/vector_unit.h"
#include "models/cpu/onednn.h"
#include "models/program/step_memory.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/cpu/workspace.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LOCKSTEP_WEIGHTS_AVX2 __attribute__((target("avx2")))
#define LOCKSTEP_WEIGHTS_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#endif
// Inlined into functions for different instruction sets, and compiled there.
#define LOCKSTEP_WEIGHTS_INLINE __attribute__((always_inline)) inline

namespace lockstep {
namespace {

using dnnl::memory;
using onednn::Blocking;
using onednn::Desc;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsRowMajor(const Blocking& plain) {
  const auto& d = plain.dims;
  return d.size() == 4 && plain.type == memory::data_type::f32 &&
         plain.inner_sizes.empty() &&
         plain.strides ==
             memory::dims{d[1] * d[2] * d[3], d[2] * d[3], d[3], 1};
}

// A tile holds the bits of a float32, or of a bfloat16 in the lower half.

// Sets to[j] to the bfloat16 of from[j].
LOCKSTEP_WEIGHTS_INLINE void RoundLoop(const float* from, int64_t n,
                                       uint32_t* to) {
  constexpr int64_t kUnit = 16;  // A loop of fixed length is vectorised.
  int64_t j = 0;
  for (; j + kUnit <= n; j += kUnit) {
    for (int64_t k = 0; k < kUnit; ++k)
      to[j + k] = ToBFloat16(from[j + k]).bits;
  }
  for (; j < n; ++j) to[j] = ToBFloat16(from[j]).bits;
}

// Sets to[p] to tile[at[p]] for p in [begin, n).
template <typename T>
LOCKSTEP_WEIGHTS_INLINE void GatherLoop(const uint32_t* tile, const int32_t* at,
                                        int64_t begin, int64_t n, T* to) {
  for (int64_t p = begin; p < n; ++p) to[p] = static_cast<T>(tile[at[p]]);
}

// The loops, compiled for one instruction set.
struct Kernels {
  template <typename T>
  using Gather = void (*)(const uint32_t* tile, const int32_t* at, int64_t n,
                          T* to);
  void (*round)(const float* from, int64_t n, uint32_t* to);
  Gather<uint32_t> gather32;
  Gather<uint16_t> gather16;
};

void RoundBaseline(const float* from, int64_t n, uint32_t* to) {
  RoundLoop(from, n, to);
}
template <typename T>
void GatherBaseline(const uint32_t* tile, const int32_t* at, int64_t n, T* to) {
  GatherLoop(tile, at, 0, n, to);
}

#if defined(__x86_64__)
LOCKSTEP_WEIGHTS_AVX2 void RoundAvx2(const float* from, int64_t n,
                                     uint32_t* to) {
  RoundLoop(from, n, to);
}
template <typename T>
LOCKSTEP_WEIGHTS_AVX2 void GatherAvx2(const uint32_t* tile, const int32_t* at,
                                      int64_t n, T* to) {
  const auto* const from = reinterpret_cast<const int*>(tile);
  int64_t p = 0;
  for (; p + 8 <= n; p += 8) {
    const auto* const places = reinterpret_cast<const __m256i*>(at + p);
    const __m256i bits =
        _mm256_i32gather_epi32(from, _mm256_loadu_si256(places), 4);
    if constexpr (std::is_same_v<T, uint32_t>) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + p), bits);
    } else {
      // Packs within 128-bit halves, then takes the first quarter of each half.
      const __m256i packed =
          _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + p),
                       _mm256_castsi256_si128(packed));
    }
  }
  GatherLoop(tile, at, p, n, to);
}

LOCKSTEP_WEIGHTS_AVX512 void RoundAvx512(const float* from, int64_t n,
                                         uint32_t* to) {
  RoundLoop(from, n, to);
}
template <typename T>
LOCKSTEP_WEIGHTS_AVX512 void GatherAvx512(const uint32_t* tile,
                                          const int32_t* at, int64_t n, T* to) {
  // gcc warns about the intrinsics without a mask.
  constexpr __mmask16 kAll = 0xffff;
  int64_t p = 0;
  for (; p + 16 <= n; p += 16) {
    const __m512i bits = _mm512_mask_i32gather_epi32(
        _mm512_setzero_si512(), kAll, _mm512_loadu_si512(at + p), tile, 4);
    if constexpr (std::is_same_v<T, uint32_t>) {
      _mm512_storeu_si512(to + p, bits);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + p),
                          _mm512_maskz_cvtepi32_epi16(kAll, bits));
    }
  }
  GatherLoop(tile, at, p, n, to);
}
#endif

const Kernels& BestKernels() {
#if defined(__x86_64__)
  static constexpr Kernels kAvx2 = {RoundAvx2, GatherAvx2, GatherAvx2};
  static constexpr Kernels kAvx512 = {RoundAvx512, GatherAvx512, GatherAvx512};
  if (BestVectorUnit() == VectorUnit::kAvx512) return kAvx512;
  if (BestVectorUnit() == VectorUnit::kAvx2) return kAvx2;
#endif
  static constexpr Kernels kBaseline = {RoundBaseline, GatherBaseline,
                                        GatherBaseline};
  return kBaseline;
}

}  // namespace

// Returns no value if other dimensions have blocks, or if the distance between
// neighbouring positions in the kernel is not constant.
std::optional<TwoFormatPass::Format> TwoFormatPass::MakeFormat(
    const Blocking& plain, const Desc& desc) {
  const std::optional<Blocking> blocking = onednn::BlockingOf(desc);
  if (!blocking.has_value() || blocking->dims != plain.dims) {
    return std::nullopt;
  }
  const memory::dims& strides = blocking->strides;
  Format format;
  format.is_bfloat16 = blocking->type == memory::data_type::bf16;
  if (!format.is_bfloat16 && blocking->type != memory::data_type::f32) {
    return std::nullopt;
  }
  for (size_t b = 0; b < blocking->inner_sizes.size(); ++b) {
    if (blocking->inner_dims[b] > 1) return std::nullopt;
    (blocking->inner_dims[b] == 0 ? format.block_o : format.block_i) *=
        blocking->inner_sizes[b];
  }
  const int64_t width = plain.dims[3];
  if (plain.dims[2] > 1 && width > 1 && strides[2] != width * strides[3]) {
    return std::nullopt;
  }
  format.blocks_o = blocking->padded[0] / format.block_o;
  format.blocks_i = blocking->padded[1] / format.block_i;
  format.stride_o = strides[0];
  format.stride_i = strides[1];
  format.stride_place = width > 1 ? strides[3] : strides[2];
  return format;
}

// Returns whether the blocks of both formats divide the tiles evenly.
bool TwoFormatPass::PlanTiles() {
  tile_o_ = std::max(first_.block_o, second_.block_o);
  tile_i_ = std::max(first_.block_i, second_.block_i);
  for (const Format* format : {&first_, &second_}) {
    if (tile_o_ % format->block_o != 0 || tile_i_ % format->block_i != 0) {
      return false;
    }
  }
  if (tile_o_ * tile_i_ > kTileValues) return false;
  const int64_t most = std::min(places_, kTileValues / (tile_o_ * tile_i_));
  tile_places_ = DivideUp(places_, DivideUp(places_, most));
  return true;
}

// stride_o, stride_i: the strides of a tile.
void TwoFormatPass::FillTable(const Desc& desc, int64_t stride_o,
                              int64_t stride_i, Format& format) {
  const Blocking blocking = *onednn::BlockingOf(desc);
  format.in_tile.resize(format.block_o * format.block_i);
  for (int64_t p = 0; p < std::ssize(format.in_tile); ++p) {
    // The digits of p, the innermost block first, are the digits of o and i.
    int64_t rest = p, index[2] = {}, unit[2] = {1, 1};
    for (size_t b = blocking.inner_sizes.size(); b-- > 0;) {
      const int64_t size = blocking.inner_sizes[b];
      const int64_t dim = blocking.inner_dims[b];
      index[dim] += rest % size * unit[dim];
      unit[dim] *= size;
      rest /= size;
    }
    format.in_tile[p] =
        static_cast<int32_t>(index[0] * stride_o + index[1] * stride_i);
  }
}

std::optional<TwoFormatPass> TwoFormatPass::Create(const Desc& plain,
                                                   const Desc& first,
                                                   const Desc& second) {
  const std::optional<Blocking> from = onednn::BlockingOf(plain);
  if (!from.has_value() || !IsRowMajor(*from)) return std::nullopt;
  std::optional<Format> a = MakeFormat(*from, first);
  std::optional<Format> b = MakeFormat(*from, second);
  if (!a.has_value() || !b.has_value() || a->is_bfloat16 != b->is_bfloat16) {
    return std::nullopt;
  }
  TwoFormatPass pass;
  pass.outputs_ = from->dims[0];
  pass.inputs_ = from->dims[1];
  pass.places_ = from->dims[2] * from->dims[3];
  pass.is_bfloat16_ = a->is_bfloat16;
  pass.first_ = *std::move(a);
  pass.second_ = *std::move(b);
  if (!pass.PlanTiles()) return std::nullopt;
  const int64_t stride_o = pass.tile_i_ * pass.tile_places_;
  FillTable(first, stride_o, pass.tile_places_, pass.first_);
  FillTable(second, stride_o, pass.tile_places_, pass.second_);
  return pass;
}

// Fills channels beyond the last with zeros. o, i and place are the tile's
// first.
void TwoFormatPass::CopyTile(const float* plain, int64_t o, int64_t i,
                             int64_t place, uint32_t* tile) const {
  const int64_t count_o = std::min(tile_o_, outputs_ - o);
  const int64_t count_i = std::min(tile_i_, inputs_ - i);
  const int64_t count = std::min(tile_places_, places_ - place);
  if (count_o < tile_o_ || count_i < tile_i_) {
    std::fill_n(tile, tile_o_ * tile_i_ * tile_places_, 0);
  }
  // A row of inputs is one run if the tile has all positions in the kernel.
  const bool whole = count == places_;
  const int64_t runs = whole ? 1 : count_i;
  const int64_t run = whole ? count_i * places_ : count;
  for (int64_t a = 0; a < count_o; ++a) {
    for (int64_t b = 0; b < runs; ++b) {
      const float* const from =
          plain + ((o + a) * inputs_ + i + b) * places_ + place;
      uint32_t* const to = tile + (a * tile_i_ + b) * tile_places_;
      if (is_bfloat16_) {
        BestKernels().round(from, run, to);
      } else {
        std::memcpy(to, from, run * sizeof(float));
      }
    }
  }
}

void TwoFormatPass::WriteTile(const uint32_t* tile, const Format& format,
                              int64_t o, int64_t i, int64_t place,
                              void* to) const {
  const Kernels& kernels = BestKernels();
  const auto size = std::ssize(format.in_tile);
  const int64_t end_o =
      std::min(format.blocks_o, (o + tile_o_) / format.block_o);
  const int64_t end_i =
      std::min(format.blocks_i, (i + tile_i_) / format.block_i);
  const int64_t count = std::min(tile_places_, places_ - place);
  for (int64_t a = o / format.block_o; a < end_o; ++a) {
    for (int64_t b = i / format.block_i; b < end_i; ++b) {
      const uint32_t* const from =
          tile + ((a * format.block_o - o) * tile_i_ + b * format.block_i - i) *
                     tile_places_;
      for (int64_t k = 0; k < count; ++k) {
        const int64_t at = a * format.stride_o + b * format.stride_i +
                           (place + k) * format.stride_place;
        if (is_bfloat16_) {
          kernels.gather16(from + k, format.in_tile.data(), size,
                           static_cast<uint16_t*>(to) + at);
        } else {
          kernels.gather32(from + k, format.in_tile.data(), size,
                           static_cast<uint32_t*>(to) + at);
        }
      }
    }
  }
}

void TwoFormatPass::Run(const float* plain, void* first, void* second) const {
  const int64_t tiles_i = DivideUp(inputs_, tile_i_);
  const int64_t tiles = DivideUp(outputs_, tile_o_) * tiles_i;
  ParallelFor(tiles, outputs_ * inputs_ * places_,
              [&](int64_t begin, int64_t end, int /*thread*/) {
                alignas(64) uint32_t tile[kTileValues];
                for (int64_t t = begin; t < end; ++t) {
                  const int64_t o = t / tiles_i * tile_o_;
                  const int64_t i = t % tiles_i * tile_i_;
                  for (int64_t k = 0; k < places_; k += tile_places_) {
                    CopyTile(plain, o, i, k, tile);
                    WriteTile(tile, first_, o, i, k, first);
                    WriteTile(tile, second_, o, i, k, second);
                  }
                }
              });
}

WeightConversion::WeightConversion(const dnnl::engine& engine,
                                   const Desc& plain, const Desc& forward,
                                   const std::optional<Desc>& data)
    : forward_(engine, plain, forward) {
  if (!data.has_value() || *data == plain) return;
  data_bytes_ = AlignedBytes(*data);
  is_shared_ = *data == forward;
  if (is_shared_) return;
  data_ = Reorder(engine, plain, *data);
  needs_two_formats_ = !forward_.is_identity();
  if (needs_two_formats_) pass_ = TwoFormatPass::Create(plain, forward, *data);
}

const void* WeightConversion::Run(dnnl::stream& stream, const float* plain,
                                  void* forward, void* data) {
  if (data != nullptr && pass_.has_value()) {
    pass_->Run(plain, forward, data);
    return forward;
  }
  if (data != nullptr) data_.RunIfNeeded(stream, plain, data);
  return forward_.RunIfNeeded(stream, plain, forward);
}

}  // namespace lockstep
