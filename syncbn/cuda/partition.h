// How activations are cut into vectors and dealt out to threads: plain
// arithmetic, the same on the host and in kernels.
//
// A reduction's partition depends on the shape, the element size and the
// address modulo 16 alone, never on the device: with it the order of additions,
// and so the bits, are the same on every GPU.
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

// An element of a channels-first tensor that moves by a fixed step: its channel
// and its offset in the plane.
class PixelCursor {
 public:
  LOCKSTEP_HOST_DEVICE constexpr PixelCursor(int64_t start, int64_t step,
                                             int64_t c, int64_t hw)
      : c_(c),
        pixel_(start, step, hw),
        planes_(Divide(step, hw).quotient),
        plane_(pixel_.high()),
        channel_(Divide(plane_, c).remainder),
        step_channel_(Divide(planes_, c).remainder) {}

  LOCKSTEP_HOST_DEVICE constexpr int64_t channel() const { return channel_; }
  LOCKSTEP_HOST_DEVICE constexpr int64_t offset() const { return pixel_.low(); }
  LOCKSTEP_HOST_DEVICE constexpr void Advance() {
    pixel_.Advance();
    channel_ += step_channel_ + (pixel_.high() - plane_ - planes_);
    plane_ = pixel_.high();
    if (channel_ >= c_) channel_ -= c_;
  }

 private:
  int64_t c_;
  Cursor pixel_;
  int64_t planes_;  // In a step.
  int64_t plane_;   // Of all.
  int64_t channel_;
  int64_t step_channel_;
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
struct PlanesPartition {
  int64_t size = 0;
  int64_t c = 1;
  int64_t hw = 1;
  int64_t past = 0;
  int64_t windows = 0;
  int64_t items = 0;  // samples * windows.
  int64_t chunk = 0;
  int64_t splits = 0;
  int threads = 1;
};
// unroll: items that a thread loads at once.
PlanesPartition CutPlanes(const ActivationShape& shape, int64_t past,
                          int vector_size, int unroll);

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
