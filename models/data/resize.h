// Resizing images of bytes as torchvision and Pillow do with antialiasing.
#ifndef LOCKSTEP_MODELS_DATA_RESIZE_H_
#define LOCKSTEP_MODELS_DATA_RESIZE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "models/data/image.h"

namespace lockstep {

enum class Interpolation {
  kBilinear,
  kBicubic,  // Keys' cubic convolution with a = -0.5.
};

// The wanted part of one axis: of `from` pixels resized to `to`, both at least
// 1, the `count` >= 1 from `begin` on, which lie in [0, to).
struct AxisPart {
  int64_t from = 0;
  int64_t to = 0;
  int64_t begin = 0;
  int64_t count = 0;

  bool operator==(const AxisPart&) const = default;
};

// Along one axis, what each wanted pixel is made of. As ATen's kernel for
// bytes with antialias=True (UpSampleKernel.cpp), which follows Pillow: the
// filter's support grows with from / to, weights are computed in float64, add
// up to 1, and are rounded to int16 with as many bits behind the point as the
// largest has room for.
struct AxisWeights {
  // Makes the weights, reusing memory; returns at once if they are those of
  // the last call. Cost: O(to * taps); memory O(count * taps).
  void Compute(const AxisPart& part, Interpolation interpolation);

  // Computes `precision` and `weights` from `exact`.
  void RoundWeights(double largest);

  AxisPart part;
  Interpolation interpolation = Interpolation::kBilinear;
  int64_t taps = 0;              // Of each pixel: an even number.
  int precision = 0;             // Bits behind the point.
  std::vector<int64_t> starts;   // [count]: the first tap, in [0, from).
  std::vector<int16_t> weights;  // [count, taps]: zero where it has fewer.
  int64_t needs_begin = 0;       // All taps lie in [needs_begin, needs_end).
  int64_t needs_end = 0;
  std::vector<double> exact;  // Work space.
  bool is_identity = false;   // from == to.
};

// Resizes, across and then down with bytes between: rows across as they come,
// down when all are there. Keeps its memory from image to image. Results are
// ATen's to the bit, on every processor. Not thread safe.
class Resizer {
 public:
  // use_vectors: false for tests of the code for processors without AVX2.
  explicit Resizer(bool use_vectors = true);

  // Begins an image, and forgets what is left of another.
  // The weights are borrowed until Finish returns.
  // Memory: needed rows * across.count * channels bytes.
  void Begin(const AxisWeights& down, const AxisWeights& across,
             int64_t channels);

  // Adds the next rows of the image's rows [down.needs_begin, down.needs_end)
  // and columns [across.needs_begin, across.needs_end), and no others.
  // Cost: multiplications: channels * rows * across.count * across.taps, 16 at
  // a time where there is AVX2 and channels is 3.
  void Add(const PixelRows& rows);

  // After all rows: calls row(y, values) for y = 0, 1, ..., down.part.count - 1
  // with across.part.count * channels bytes, which are valid during the call.
  // Cost: as above, channels * across.count * down.count * down.taps.
  void Finish(absl::FunctionRef<void(int64_t y, const uint8_t* values)> row);

 private:
  bool use_vectors_;
  const AxisWeights* down_weights_ = nullptr;
  const AxisWeights* across_weights_ = nullptr;
  int64_t channels_ = 0;
  int64_t stride_ = 0;              // Of across_.
  int64_t added_ = 0;               // Rows.
  std::vector<uint8_t> across_;     // [needed rows, stride_].
  std::vector<uint8_t> last_rows_;  // Copies with room to read beyond them.
  std::vector<uint8_t> out_row_;
  std::vector<const uint8_t*> taps_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_RESIZE_H_
