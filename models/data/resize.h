// Resizes images of bytes as torchvision and Pillow do with antialiasing.
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

// The wanted part of one axis that is resized from `from` to `to` pixels, both
// at least 1. The part is the `count` >= 1 pixels from `begin` on, within [0,
// to).
struct AxisPart {
  int64_t from = 0;
  int64_t to = 0;
  int64_t begin = 0;
  int64_t count = 0;

  bool operator==(const AxisPart&) const = default;
};

// The weights of each wanted pixel along one axis, as in ATen's kernel for
// bytes with antialias=True (UpSampleKernel.cpp), which follows Pillow. The
// filter's support grows with from / to. Weights are computed in float64 and
// add up to 1. They are then rounded to int16, with as many fractional bits as
// the largest weight allows.
struct AxisWeights {
  // Computes the weights, reusing memory. Returns at once if the arguments
  // equal those of the last call. Cost: O(to * taps); memory O(count * taps).
  void Compute(const AxisPart& part, Interpolation interpolation);

  // Computes `precision` and `weights` from `exact`.
  void RoundWeights(double largest);

  AxisPart part;
  Interpolation interpolation = Interpolation::kBilinear;
  int64_t taps = 0;              // The taps of each pixel: an even number.
  int precision = 0;             // The number of fractional bits.
  std::vector<int64_t> starts;   // [count]: the first tap, in [0, from).
  std::vector<int16_t> weights;  // [count, taps]; unused taps have weight zero.
  int64_t needs_begin = 0;       // All taps are in [needs_begin, needs_end).
  int64_t needs_end = 0;
  std::vector<double> exact;  // Work space of Compute.
  bool is_identity = false;   // from == to.
};

// Resizes across and then down, with bytes between the passes. Each row is
// resized across when it is added, and all rows are resized down in Finish.
// Keeps its memory from image to image. Results are ATen's to the bit, on every
// processor. Not thread safe.
class Resizer {
 public:
  // use_vectors: false for tests of the code for processors without AVX2.
  explicit Resizer(bool use_vectors = true);

  // Begins an image and discards an unfinished one. The weights are borrowed
  // until Finish returns. Memory: needed rows * across.count * channels bytes.
  void Begin(const AxisWeights& down, const AxisWeights& across,
             int64_t channels);

  // Adds the next rows. The rows must be the image's rows [down.needs_begin,
  // down.needs_end) and columns [across.needs_begin, across.needs_end), and no
  // others. Cost: channels * rows * across.count * across.taps multiplications,
  // 16 at a time with AVX2 and 3 channels.
  void Add(const PixelRows& rows);

  // Calls row(y, values) for y = 0, 1, ..., down.part.count - 1, after all rows
  // were added. values: across.part.count * channels bytes, valid during the
  // call. Cost: channels * across.count * down.count * down.taps
  // multiplications.
  void Finish(absl::FunctionRef<void(int64_t y, const uint8_t* values)> row);

 private:
  bool use_vectors_;
  const AxisWeights* down_weights_ = nullptr;
  const AxisWeights* across_weights_ = nullptr;
  int64_t channels_ = 0;
  int64_t stride_ = 0;           // The stride of across_.
  int64_t added_ = 0;            // The number of rows added.
  std::vector<uint8_t> across_;  // [needed rows, stride_].
  // Copies of rows, with room for reads beyond them.
  std::vector<uint8_t> last_rows_;
  std::vector<uint8_t> out_row_;
  std::vector<const uint8_t*> taps_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_RESIZE_H_
