// How activations are cut into vectors and dealt out to threads: plain
// arithmetic, the same on the host and in kernels.
//
// A reduction's partition depends on the shape, the element size and the
// address modulo 16 alone, never on the device: with it the order of additions
// is the same on every GPU, and the bits on every GPU of one architecture, for
// which the same machine code runs.
#ifndef LOCKSTEP_SYNCBN_CUDA_PARTITION_H_
#define LOCKSTEP_SYNCBN_CUDA_PARTITION_H_

#include <cstdint>
#include <span>

#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// Eight warps: a multiprocessor's 2048 threads are eight such blocks, and a
// block's sums are merged in eight steps.
inline constexpr int kMaxThreads = 256;

// Quotient and remainder in one 32-bit division where that suffices: a 64-bit
// one is a subroutine of a hundred instructions on a GPU. a >= 0, b > 0.
struct QuotientRemainder {
  int64_t quotient;
  int64_t remainder;
};
LOCKSTEP_HOST_DEVICE constexpr QuotientRemainder Divide(int64_t a, int64_t b) {
  if ((a | b) >> 31 == 0) {
    const uint32_t x = static_cast<uint32_t>(a);
    const uint32_t y = static_cast<uint32_t>(b);
    return {x / y, x % y};
  }
  return {a / b, a % b};
}

// How many of [first, end) lie `step` apart from the first on. Of what one
// thread does, which is less than 2^31.
LOCKSTEP_HOST_DEVICE constexpr int CountOwn(int64_t first, int64_t end,
                                            int64_t step) {
  if (first >= end) return 0;
  return static_cast<int>(Divide(end - first - 1, step).quotient) + 1;
}

// A number of two digits, `high` and `low` < radix, that grows by a fixed step
// without divisions.
class Cursor {
 public:
  LOCKSTEP_HOST_DEVICE constexpr Cursor(int64_t start, int64_t step,
                                        int64_t radix)
      : radix_(radix), at_(Divide(start, radix)), step_(Divide(step, radix)) {}

  LOCKSTEP_HOST_DEVICE constexpr int64_t high() const { return at_.quotient; }
  LOCKSTEP_HOST_DEVICE constexpr int64_t low() const { return at_.remainder; }
  LOCKSTEP_HOST_DEVICE constexpr void Advance() {
    at_.quotient += step_.quotient;
    at_.remainder += step_.remainder;
    if (at_.remainder >= radix_) {
      at_.remainder -= radix_;
      ++at_.quotient;
    }
  }

 private:
  int64_t radix_;
  QuotientRemainder at_;
  QuotientRemainder step_;
};

// How far an element of a channels-first tensor moves at a time: channels, of
// those that there are, and offset in the plane.
struct PixelStep {
  int64_t offset = 0;
  int32_t channels = 0;
};
LOCKSTEP_HOST_DEVICE constexpr PixelStep PixelStepOf(int64_t elements,
                                                     int64_t c, int64_t hw) {
  const QuotientRemainder planes = Divide(elements, hw);
  return {planes.remainder,
          static_cast<int32_t>(Divide(planes.quotient, c).remainder)};
}

// An element of a channels-first tensor that moves by a fixed step: its channel
// and its offset in the plane.
class PixelCursor {
 public:
  // step: PixelStepOf the same c and hw.
  LOCKSTEP_HOST_DEVICE constexpr PixelCursor(int64_t start, PixelStep step,
                                             int64_t c, int64_t hw)
      : c_(static_cast<int32_t>(c)),
        hw_(hw),
        step_(step),
        at_(PixelStepOf(start, c, hw)) {}

  LOCKSTEP_HOST_DEVICE constexpr int32_t channel() const {
    return at_.channels;
  }
  LOCKSTEP_HOST_DEVICE constexpr int64_t offset() const { return at_.offset; }
  LOCKSTEP_HOST_DEVICE constexpr void Advance() {
    at_.offset += step_.offset;
    const bool past_plane = at_.offset >= hw_;
    at_.offset -= past_plane ? hw_ : 0;
    // Unsigned, since the sum of two channels may not fit.
    const uint32_t channel = static_cast<uint32_t>(at_.channels) +
                             static_cast<uint32_t>(step_.channels) +
                             (past_plane ? 1 : 0);
    const auto c = static_cast<uint32_t>(c_);
    at_.channels = static_cast<int32_t>(channel >= c ? channel - c : channel);
  }

 private:
  int32_t c_;
  int64_t hw_;
  PixelStep step_;
  PixelStep at_;
};

// The same memory with its layout's name chosen so that kernels do best:
// features without pixels are channels last, one channel is one plane.
ActivationShape Canonical(const ActivationShape& shape);

// Elements by which all tensors lie past a boundary of vectors of `vector_size`
// elements; -1 if they do not agree, so that no vector of one faces a vector of
// another. Null pointers lie anywhere.
int64_t ElementsPastBoundary(std::span<const void* const> tensors,
                             int64_t element_bytes, int vector_size);

// Of element-wise kernels: `head` single elements, `vectors` vectors, and
// single elements up to `size`.
struct FlatPartition {
  int64_t size = 0;
  int64_t c = 1;
  int64_t hw = 1;
  int64_t head = 0;
  int64_t vectors = 0;
  // A thread's vectors are so far apart. Channels last it is a multiple of the
  // channels, so that each thread keeps its own.
  int64_t step = 1;
  PixelStep pixel_step;  // The same, channels first.
  bool whole = true;     // Channels first: every plane is whole vectors.
  int64_t blocks = 0;

  LOCKSTEP_HOST_DEVICE constexpr int64_t singles(int vector_size) const {
    return size - vectors * vector_size;
  }
};
// past: elements past a boundary, in [0, vector_size).
FlatPartition CutFlat(const ActivationShape& shape, int64_t past,
                      int vector_size, int64_t max_blocks);

// Of reductions over channels-first tensors: each plane of hw elements is
// covered by `windows` aligned vectors, whose elements outside are left out.
// Block (channel, split) reads `chunk` of the samples * windows of its channel.
// Of vectors that reach over the tensor's ends no element is valid: those under
// `head` and from `tail` on are left over.
struct PlanesPartition {
  int64_t size = 0;
  int64_t c = 1;
  int64_t hw = 1;
  int64_t past = 0;
  bool whole = true;  // Every plane is whole vectors.
  int64_t head = 0;
  int64_t tail = 0;
  int64_t windows = 0;
  int64_t items = 0;  // samples * windows.
  int64_t chunk = 0;
  int64_t splits = 0;
  int threads = 1;
  int64_t sample = 0;  // Elements of one.
  // A block's threads as a step over items: elements of whole samples, and
  // windows.
  int64_t step_plane = 0;
  int64_t step_windows = 0;
};
// unroll: items that a thread loads at once.
PlanesPartition CutPlanes(const ActivationShape& shape, int64_t past,
                          int vector_size, int unroll);

// The windows of one channel that a thread reads, `threads` items apart, in
// vectors of kSize. kWhole: PlanesPartition's.
template <int kSize, bool kWhole>
class WindowCursor {
 public:
  LOCKSTEP_HOST_DEVICE constexpr WindowCursor(const PlanesPartition& cut,
                                              int64_t channel, int64_t item) {
    const QuotientRemainder at = Divide(item, cut.windows);
    window_ = at.remainder;
    plane_ = at.quotient * cut.sample + channel * cut.hw + cut.past;
  }

  // Of the vector's first element; where not kWhole it may lie outside.
  LOCKSTEP_HOST_DEVICE constexpr int64_t place(
      const PlanesPartition& cut) const {
    if constexpr (kWhole) return plane_ + window_ * kSize;
    return (plane_ & -int64_t{kSize}) + window_ * kSize - cut.past;
  }

  // Bit k: element k is the channel's. No bit is set where the vector does not
  // lie in the tensor.
  LOCKSTEP_HOST_DEVICE constexpr uint32_t valid(
      const PlanesPartition& cut) const {
    constexpr uint32_t kAll = (uint32_t{1} << kSize) - 1;
    if constexpr (kWhole) return kAll;
    // Elements of the first window that come before the plane, and from this
    // window's first one on to the plane's end.
    const uint32_t before = static_cast<uint32_t>(plane_) & (kSize - 1);
    const int64_t left = cut.hw + before - window_ * kSize;
    const int64_t at = place(cut);
    if (left <= 0 || at < cut.head || at >= cut.tail) return 0;
    uint32_t bits = kAll;
    if (left < kSize) bits = (uint32_t{1} << left) - 1;
    return window_ == 0 ? bits & kAll << before : bits;
  }

  LOCKSTEP_HOST_DEVICE constexpr void Advance(const PlanesPartition& cut) {
    window_ += cut.step_windows;
    plane_ += cut.step_plane;
    if (window_ >= cut.windows) {
      window_ -= cut.windows;
      plane_ += cut.sample;
    }
  }

 private:
  int64_t window_ = 0;
  int64_t plane_ = 0;  // Its first element, counted from the boundary before.
};

// Of reductions over channels-last tensors: from `head` on they are a matrix of
// `rows` rows of `period` vectors, where period * vector_size is the least
// multiple of c that is whole vectors. So in every row a vector has the same
// channels. Block (tile, split) reads `width` columns of `chunk` rows, `height`
// rows at a time. What is left over, less than a row and a vector, begins at 0
// and at `tail`.
struct RowsPartition {
  int64_t size = 0;
  int64_t c = 1;
  int64_t head = 0;
  int64_t tail = 0;
  int64_t period = 0;
  int64_t rows = 0;
  int width = 1;
  int height = 1;
  int64_t tiles = 0;
  int64_t chunk = 0;
  int64_t splits = 0;
};
RowsPartition CutRows(const ActivationShape& shape, int64_t past,
                      int vector_size, int unroll);

// What the last kernel of a reduction merges: partial results [splits, columns]
// where column j is of channel (head + j) % c, and the elements under `head`
// and from `tail` on.
struct PartialsPartition {
  int64_t c = 1;
  int64_t columns = 0;  // A multiple of c.
  int64_t splits = 0;
  int64_t head = 0;
  int64_t tail = 0;
  int64_t size = 0;
  int threads = 1;
};
PartialsPartition PartialsOf(const PlanesPartition& planes);
PartialsPartition PartialsOf(const RowsPartition& rows, int vector_size);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_PARTITION_H_
