// Each pass is implemented twice: as plain loops, and with AVX2. Both use
// integers and give the same bytes.
#include "models/data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/vector_unit.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace lockstep {
namespace {

// The number of bytes beyond a row's last pixel that a vector may write.
constexpr int64_t kSlack = 16;

double Filter(Interpolation interpolation, double x) {
  x = std::abs(x);
  if (interpolation == Interpolation::kBilinear) return x < 1 ? 1 - x : 0;
  constexpr double a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

uint8_t Clamped(int32_t sum, int precision) {
  return static_cast<uint8_t>(std::clamp(sum >> precision, 0, 255));
}

void AcrossRow(const uint8_t* row, const AxisWeights& axis, int64_t channels,
               uint8_t* out) {
  for (int64_t x = 0; x < axis.part.count; ++x) {
    const uint8_t* const from =
        row + (axis.starts[x] - axis.needs_begin) * channels;
    const int16_t* const weights = axis.weights.data() + x * axis.taps;
    // Columns beyond the needed ones have no weight, and are not read.
    const int64_t taps = std::min(axis.taps, axis.needs_end - axis.starts[x]);
    for (int64_t c = 0; c < channels; ++c) {
      int32_t sum = 1 << (axis.precision - 1);
      for (int64_t k = 0; k < taps; ++k) {
        sum += weights[k] * from[k * channels + c];
      }
      *out++ = Clamped(sum, axis.precision);
    }
  }
}

// Computes columns [i, n) of a row.
void DownRow(const uint8_t* const* taps, int64_t count, const int16_t* weights,
             int precision, int64_t i, int64_t n, uint8_t* out) {
  for (; i < n; ++i) {
    int32_t sum = 1 << (precision - 1);
    for (int64_t k = 0; k < count; ++k) sum += weights[k] * taps[k][i];
    out[i] = Clamped(sum, precision);
  }
}

#ifdef __x86_64__
#define LOCKSTEP_RESIZE_AVX2 __attribute__((target("avx2")))

// Computes two rows of three channels at once: row a is in the lower half of
// each vector, row b in the upper half. Four pixels are loaded at a time. Two
// pixels, r r g g b b in 16 bits, are multiplied with weights w w w w w w and
// added in pairs.
LOCKSTEP_RESIZE_AVX2 void AcrossRowsAvx2(const uint8_t* a, const uint8_t* b,
                                         const AxisWeights& axis,
                                         uint8_t* out_a, uint8_t* out_b) {
  const __m256i first = _mm256_setr_epi8(
      0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
      0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
  const __m256i second = _mm256_setr_epi8(
      6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,  //
      6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m256i half = _mm256_set1_epi32(1 << (axis.precision - 1));
  const __m128i precision = _mm_cvtsi32_si128(axis.precision);
  const int16_t* weights = axis.weights.data();
  const auto add = [&](__m256i sums, __m256i pixels,
                       __m256i order) LOCKSTEP_RESIZE_AVX2 {
    int32_t pair;
    std::memcpy(&pair, weights, sizeof(pair));
    weights += 2;
    return _mm256_add_epi32(
        sums, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, order),
                                _mm256_set1_epi32(pair)));
  };
  for (int64_t x = 0; x < axis.part.count; ++x) {
    int64_t at = (axis.starts[x] - axis.needs_begin) * 3;
    __m256i sums = half;
    for (int64_t k = 0; k < axis.taps; k += 4, at += 12) {
      const __m256i pixels = _mm256_inserti128_si256(
          _mm256_castsi128_si256(
              _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + at))),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + at)), 1);
      sums = add(sums, pixels, first);
      if (k + 2 < axis.taps) sums = add(sums, pixels, second);
    }
    sums = _mm256_sra_epi32(sums, precision);
    sums = _mm256_packs_epi32(sums, sums);
    sums = _mm256_packus_epi16(sums, sums);
    const int32_t rgb_a = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums));
    const int32_t rgb_b = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
    std::memcpy(out_a + 3 * x, &rgb_a, sizeof(rgb_a));
    std::memcpy(out_b + 3 * x, &rgb_b, sizeof(rgb_b));
  }
}

// Computes sixteen columns and two taps at a time. Returns the number of
// columns computed.
LOCKSTEP_RESIZE_AVX2 int64_t DownRowAvx2(const uint8_t* const* taps,
                                         int64_t count, const int16_t* weights,
                                         int precision, int64_t n,
                                         uint8_t* out) {
  const __m256i half = _mm256_set1_epi32(1 << (precision - 1));
  const __m128i bits = _mm_cvtsi32_si128(precision);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m256i low = half, high = half;
    for (int64_t k = 0; k < count; k += 2) {
      const __m128i a =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(taps[k] + i));
      const __m128i b =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(taps[k + 1] + i));
      int32_t pair;
      std::memcpy(&pair, weights + k, sizeof(pair));
      const __m256i two = _mm256_set1_epi32(pair);
      low = _mm256_add_epi32(
          low, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)),
                                 two));
      high = _mm256_add_epi32(
          high, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b)),
                                  two));
    }
    // Packing works on the halves of vectors, so the quarters are reordered
    // after it.
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_sra_epi32(low, bits),
                           _mm256_sra_epi32(high, bits)),
        0b11011000);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm_packus_epi16(_mm256_castsi256_si128(words),
                                      _mm256_extracti128_si256(words, 1)));
  }
  return i;
}
#else
void AcrossRowsAvx2(const uint8_t*, const uint8_t*, const AxisWeights&,
                    uint8_t*, uint8_t*) {}
int64_t DownRowAvx2(const uint8_t* const*, int64_t, const int16_t*, int,
                    int64_t, uint8_t*) {
  return 0;
}
#endif

}  // namespace

void AxisWeights::Compute(const AxisPart& wanted, Interpolation how) {
  if (part == wanted && interpolation == how) return;
  part = wanted;
  interpolation = how;
  is_identity = part.from == part.to;
  const double scale =
      static_cast<double>(part.from) / static_cast<double>(part.to);
  const double stretch = std::max(scale, 1.0);
  const double support = (how == Interpolation::kBilinear ? 1 : 2) * stretch;
  // The largest number of taps of a pixel, rounded up to an even number.
  taps = std::min(static_cast<int64_t>(2 * support + 1), part.from);
  taps += taps % 2;
  exact.assign((part.count + 1) * taps, 0);
  starts.resize(part.count);
  double largest = 0;
  for (int64_t i = 0; i < part.to; ++i) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const int64_t first =
        std::max(static_cast<int64_t>(center - support + 0.5), int64_t{0});
    const int64_t end =
        std::min(static_cast<int64_t>(center + support + 0.5), part.from);
    // Pixels outside the wanted part affect only the precision.
    const bool wanted = i >= part.begin && i < part.begin + part.count;
    const int64_t at = wanted ? i - part.begin : part.count;
    double* const w = exact.data() + at * taps;
    double total = 0;
    for (int64_t k = first; k < end; ++k) {
      w[k - first] = Filter(interpolation,
                            (static_cast<double>(k) - center + 0.5) / stretch);
      total += w[k - first];
    }
    for (int64_t k = 0; k < end - first; ++k) {
      w[k] /= total;
      largest = std::max(largest, w[k]);
    }
    if (!wanted) continue;
    starts[at] = first;
    if (at == 0) needs_begin = first;
    needs_end = end;
  }
  RoundWeights(largest);
  if (is_identity) {
    needs_begin = part.begin;
    needs_end = part.begin + part.count;
  }
}

void AxisWeights::RoundWeights(double largest) {
  // The largest number of bits for which the largest weight is below 2^15.
  precision = 0;
  while (precision < 22 &&
         static_cast<int>(0.5 + largest * (1 << (precision + 1))) < 1 << 15) {
    ++precision;
  }
  weights.resize(part.count * taps);
  for (size_t k = 0; k < weights.size(); ++k) {
    const double scaled = exact[k] * (1 << precision);
    weights[k] = static_cast<int16_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  }
}

Resizer::Resizer(bool use_vectors)
    : use_vectors_(use_vectors && BestVectorUnit() >= VectorUnit::kAvx2) {}

void Resizer::Begin(const AxisWeights& down, const AxisWeights& across,
                    int64_t channels) {
  down_weights_ = &down;
  across_weights_ = &across;
  channels_ = channels;
  stride_ = across.part.count * channels + kSlack;
  added_ = 0;
  across_.resize(stride_ * (down.needs_end - down.needs_begin));
}

void Resizer::Add(const PixelRows& rows) {
  const AxisWeights& across = *across_weights_;
  uint8_t* const out = across_.data() + added_ * stride_;
  added_ += rows.height;
  const int64_t row_bytes = rows.width * rows.channels;
  if (across.is_identity || !use_vectors_ || rows.channels != 3) {
    for (int64_t y = 0; y < rows.height; ++y) {
      const uint8_t* const row = rows.data + y * rows.stride;
      if (across.is_identity) {
        std::copy_n(row, row_bytes, out + y * stride_);
      } else {
        AcrossRow(row, across, rows.channels, out + y * stride_);
      }
    }
    return;
  }
  // Vectors also read pixels without weight, beyond the row. Rows from which
  // such a read would leave the memory are copied first.
  const int64_t reach = row_bytes + 3 * across.taps + kSlack;
  const uint8_t* const end =
      rows.data + (rows.height - 1) * rows.stride + row_bytes;
  last_rows_.resize(2 * reach);
  for (int64_t y = 0; y < rows.height; y += 2) {
    // A last row without a partner is resized twice.
    const int64_t next = std::min(y + 1, rows.height - 1);
    const uint8_t* pair[] = {rows.data + y * rows.stride,
                             rows.data + next * rows.stride};
    for (int i = 0; i < 2; ++i) {
      if (end - pair[i] >= reach) continue;
      uint8_t* const copy = last_rows_.data() + i * reach;
      std::copy_n(pair[i], row_bytes, copy);
      pair[i] = copy;
    }
    AcrossRowsAvx2(pair[0], pair[1], across, out + y * stride_,
                   out + next * stride_);
  }
}

void Resizer::Finish(absl::FunctionRef<void(int64_t, const uint8_t*)> row) {
  const AxisWeights& down = *down_weights_;
  const uint8_t* const rows = across_.data();
  if (down.is_identity) {
    for (int64_t y = 0; y < down.part.count; ++y) row(y, rows + y * stride_);
    return;
  }
  const int64_t n = across_weights_->part.count * channels_;
  out_row_.resize(n);
  taps_.resize(down.taps);
  for (int64_t y = 0; y < down.part.count; ++y) {
    for (int64_t k = 0; k < down.taps; ++k) {
      // Taps without weight point to some existing row.
      const int64_t from = std::min(down.starts[y] + k, down.needs_end - 1);
      taps_[k] = rows + (from - down.needs_begin) * stride_;
    }
    const int16_t* const weights = down.weights.data() + y * down.taps;
    const int64_t done = use_vectors_
                             ? DownRowAvx2(taps_.data(), down.taps, weights,
                                           down.precision, n, out_row_.data())
                             : 0;
    DownRow(taps_.data(), down.taps, weights, down.precision, done, n,
            out_row_.data());
    row(y, out_row_.data());
  }
}

}  // namespace lockstep
