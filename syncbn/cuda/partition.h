// Cuts activations into vectors and assigns the vectors to threads. This is
// plain arithmetic, the same on the host and in kernels.
//
// A reduction's partition depends only on the shape, the element size and the
// address modulo 16, and never on the device. The order of additions is
// therefore the same on every GPU. The bits are the same on every GPU of one
// architecture, because all of them run the same machine code.
#ifndef LOCKSTEP_SYNCBN_CUDA_PARTITION_H_
#define LOCKSTEP_SYNCBN_CUDA_PARTITION_H_

#include <cstdint>
#include <span>

#include "base/host_device.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// Eight warps. A multiprocessor's 2048 threads make eight such blocks, and a
// block's sums are merged in eight steps.
inline constexpr int kMaxThreads = 256;

// The quotient and the remainder of a / b, computed by one 32-bit division if
// that suffices. A 64-bit division is a subroutine of a hundred instructions on
// a GPU. a >= 0, b > 0.
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

// Returns how many numbers of [first, end) one thread handles: first, first +
// step, and so on. The result is less than 2^31.
LOCKSTEP_HOST_DEVICE constexpr int CountSteps(int64_t first, int64_t end,
                                              int64_t step) {
  if (first >= end) return 0;
  return static_cast<int>(Divide(end - first - 1, step).quotient) + 1;
}

// A number with two digits, `high` and `low` < radix, that grows by a fixed
// step without divisions.
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

// A step of an element of a channels-first tensor: a number of channels, modulo
// the tensor's channels, and an offset in the plane.
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

// An element of a channels-first tensor that moves by a fixed step. It has a
// channel and an offset in the plane.
class PixelCursor {
 public:
  // step: a PixelStepOf with the same c and hw.
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
    // Unsigned arithmetic, because the sum of two channels may exceed int32_t.
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

// Returns a shape for the same memory with the layout that is best for kernels:
// features without pixels become channels last, and a single channel becomes
// one plane.
ActivationShape CanonicalShape(const ActivationShape& shape);

// Returns the number of elements by which all tensors lie after a boundary of
// vectors of `vector_size` elements. Returns -1 if the tensors differ, so that
// no vector of one is opposite a vector of another. Null pointers are ignored.
int64_t ElementsPastBoundary(std::span<const void* const> tensors,
                             int64_t element_bytes, int vector_size);

// The partition of element-wise kernels: `head` single elements, then `vectors`
// vectors, then single elements up to `size`. A thread walks from its last
// vector to its first: a reduction has read the end of a tensor last, so the
// end may still lie in the second-level cache.
struct FlatPartition {
  int64_t size = 0;
  int64_t c = 1;
  int64_t hw = 1;
  int64_t head = 0;
  int64_t vectors = 0;
  // The distance between a thread's vectors. With channels last, it is a
  // multiple of the channels, so that each thread keeps its own channels.
  int64_t step = 1;
  // From one vector to the one `step` before: elements, and a step of pixels.
  int64_t stride = -1;
  PixelStep pixel_step_back;
  bool whole = true;  // Channels first: each plane is whole vectors.
  int64_t blocks = 0;

  LOCKSTEP_HOST_DEVICE constexpr int64_t singles(int vector_size) const {
    return size - vectors * vector_size;
  }
  // Return the number and the last of the vectors of the thread whose first
  // vector is `first`.
  LOCKSTEP_HOST_DEVICE constexpr int count(int64_t first) const {
    return CountSteps(first, vectors, step);
  }
  LOCKSTEP_HOST_DEVICE constexpr int64_t last(int64_t first) const {
    return first + (count(first) - 1) * step;
  }
};
// past: the elements after a boundary, in [0, vector_size).
FlatPartition CutFlat(const ActivationShape& shape, int64_t past,
                      int vector_size, int64_t max_blocks);

// The partition of reductions over channels-first tensors. Each plane of hw
// elements has `windows` aligned vectors, wherever it begins: from its first
// boundary on. Its `ends` elements before and after them are single. Block
// (channel, split) reads `chunk` of the samples * windows vectors of its
// channel, and the ends of `end_samples` samples.
struct PlanesPartition {
  int64_t size = 0;
  int64_t c = 1;
  int64_t hw = 1;
  int64_t past = 0;
  bool whole = true;  // Every plane is whole vectors.
  int64_t samples = 0;
  int64_t windows = 0;
  int64_t items = 0;  // samples * windows.
  int64_t chunk = 0;
  int64_t splits = 0;
  int threads = 1;
  int64_t sample = 0;  // The elements of one sample.
  int64_t inner = 0;   // The elements of a plane's windows.
  // A block's threads as a step over items: elements of whole samples, and
  // elements of windows.
  int64_t step_plane = 0;
  int64_t step_offset = 0;
  // The first end_rows * ends threads read ends: each has the same end in every
  // end_rows-th sample.
  int ends = 0;
  int end_rows = 0;
  int64_t end_samples = 0;
};
// unroll: the number of items that a thread loads at once.
PlanesPartition CutPlanes(const ActivationShape& shape, int64_t past,
                          int vector_size, int unroll);

// The number of single elements that a thread loads at once.
inline constexpr int kEndUnroll = 8;

// The windows of one channel that a thread reads, `threads` items apart, in
// vectors of kSize. kWhole: as in PlanesPartition.
template <int kSize, bool kWhole>
class WindowCursor {
 public:
  // cut.windows must not be 0.
  LOCKSTEP_HOST_DEVICE constexpr WindowCursor(const PlanesPartition& cut,
                                              int64_t channel, int64_t item) {
    const QuotientRemainder at = Divide(item, cut.windows);
    offset_ = at.remainder * kSize - cut.past;
    plane_ = at.quotient * cut.sample + channel * cut.hw;
    if (!kWhole) plane_ += cut.past + kSize - 1;
  }

  // Returns the place of the vector's first element.
  LOCKSTEP_HOST_DEVICE constexpr int64_t place() const {
    return (kWhole ? plane_ : plane_ & -int64_t{kSize}) + offset_;
  }

  LOCKSTEP_HOST_DEVICE constexpr void Advance(const PlanesPartition& cut) {
    offset_ += cut.step_offset;
    plane_ += cut.step_plane;
    if (offset_ >= cut.inner - cut.past) {
      offset_ -= cut.inner;
      plane_ += cut.sample;
    }
  }

 private:
  // The vector's place after the plane's first boundary, from `past` before it.
  int64_t offset_ = 0;
  // The plane's first element. If not kWhole, counted from the boundary before
  // the tensor, plus kSize - 1.
  int64_t plane_ = 0;
};

// Returns the place of an end of the plane whose first element is `plane`.
template <int kSize>
LOCKSTEP_HOST_DEVICE constexpr int64_t EndPlace(const PlanesPartition& cut,
                                                int64_t plane, int end) {
  // The elements before the plane's first boundary.
  const int before = static_cast<int>(-(plane + cut.past) & (kSize - 1));
  return plane + end + (end < before ? 0 : cut.inner);
}

// The partition of reductions over channels-last tensors. From `head` on, the
// elements are a matrix of `rows` rows of `period` vectors. period *
// vector_size is the least multiple of c that is whole vectors, so a column of
// vectors has the same channels in every row. Block (tile, split) reads `width`
// columns of `chunk` rows, `height` rows at a time. The remaining elements,
// less than a row and a vector, begin at 0 and at `tail`.
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

// The tickets of a reduction: in groups of blocks the last block to arrive
// merges (last_block.h). No partition needs more.
inline constexpr int64_t kTickets = 2048;

// The results of channels that a block keeps in shared memory while it merges.
inline constexpr int kMergedStates = 1024;

// The merge of partial results [splits, columns], where column j belongs to
// channel (head + j) % c, and of the elements below `head` and from `tail` on,
// which are in no partial result.
//
// A channel's partial results, in the order of splits and then of columns, are
// merged in a tree with `threads` leaves: leaf t has the results t, t +
// threads, and so on. If `groups` is 0, a kernel of its own merges them, one
// block for each channel. Otherwise each channel has one column, and blocks of
// the reduction merge, with the same tree. Block (tile, split) has `tile`
// columns and belongs to group split % groups of its tile. The last block of a
// group to arrive merges the leaves t with t % groups = group. The last block
// of a tile's last group merges the groups.
struct PartialsPartition {
  int64_t c = 1;
  int64_t columns = 0;  // A multiple of c.
  int64_t splits = 0;
  int64_t head = 0;
  int64_t tail = 0;
  int64_t size = 0;
  int threads = 1;
  int groups = 0;
  int tile = 1;
  // The rows of states in shared memory in which a block merges a group's
  // leaves, and a tile's groups.
  int leaf_rows = 1;
  int group_rows = 1;
};
PartialsPartition PartialsOf(const PlanesPartition& planes);
// merge_unroll: the partial results of a column that a thread loads at once.
PartialsPartition PartialsOf(const RowsPartition& rows, int vector_size,
                             int merge_unroll);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_PARTITION_H_
