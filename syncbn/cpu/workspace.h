// The threads and the scratch memory of a rank's loops, and the order in which
// loops traverse activations. The order depends only on the shape. Reductions
// use columns, rows and segments, so their order of additions depends only on
// the shape too. Element-wise operations use runs.
#ifndef LOCKSTEP_SYNCBN_CPU_WORKSPACE_H_
#define LOCKSTEP_SYNCBN_CPU_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "syncbn/batch_norm.h"

namespace lockstep {

// Returns how many threads ParallelFor may use when the calling thread calls
// it: as many as oneDNN would (omp_get_max_threads).
int MaxParallelThreads();

// The least work for each thread. For less work it is not worth starting
// another thread.
inline constexpr int64_t kWorkOfThread = int64_t{1} << 15;

// Cuts [0, items) into one contiguous part for each thread, in order, and calls
// `body(begin, end, thread)` for each part that is not empty. Returns when all
// parts are done. thread: in [0, MaxParallelThreads()), different for parts
// that run at the same time. work: the total count of numbers that the loop
// passes over; each thread that takes part has at least kWorkOfThread of them.
// With one thread, or inside another such loop, this is a plain call. body must
// not throw.
void ParallelFor(
    int64_t items, int64_t work,
    absl::FunctionRef<void(int64_t begin, int64_t end, int thread)> body);

// Allocates host memory aligned to 64. Errors: kResourceExhausted.
absl::StatusOr<std::shared_ptr<std::byte>> AllocateHost(int64_t bytes);

// Host memory that is kept between calls and grows as needed.
class Scratch {
 public:
  // Returns at least `bytes` of memory, aligned to 64, with unspecified
  // contents. The memory is valid until the next call.
  absl::StatusOr<std::byte*> Reserve(int64_t bytes);

 private:
  std::shared_ptr<std::byte> memory_;
  int64_t bytes_ = 0;
};

inline constexpr int64_t kTileRows = 64;
inline constexpr int64_t kTileColumns = 64;
// The largest number of pixels in a row: PixelsPerRow(1).
inline constexpr int64_t kMaxPixelsPerRow = 256;

// The view of activations that reductions use: `series` series of values. With
// channels last there is one series, in which the channels alternate with a
// period of c. With channels first there is one series for each channel: its
// planes, one after the other, with a period of 1. With blocked channels there
// is one series for each block: its planes, one after the other, with a period
// of 16; each period is a row.
//
// A series is a matrix whose rows have `group` periods side by side, so that a
// row is long enough for vectors, followed by `rest` periods that fill no row.
// Column j belongs to channel j % period.
//
// Rows are reduced in tiles: each column of a tile by itself. Then tiles are
// merged in order, then the columns of a channel, then the rest, and last, in
// order, the segments into which the tiles are cut.
struct ColumnPlan {
  int64_t series = 0;
  int64_t period = 1;
  int64_t group = 1;
  int64_t rows = 0;      // In each series, of `columns()` values.
  int64_t rest = 0;      // Periods after the last row; < `group`.
  int64_t segments = 1;  // Per series; the last has the rest too.
  // The rows of a tile, at most kTileRows. A tile ends where a band of rows
  // ends: with blocked channels a tile is a part of a plane, or some whole
  // planes.
  int64_t tile_rows = kTileRows;
  int64_t band_rows = kTileRows;

  int64_t columns() const { return group * period; }
  int64_t size() const { return series * (rows * group + rest) * period; }
  int64_t items() const { return series * segments; }
  int64_t tiles() const;  // The tiles of a series' rows.
  // Returns the first row of a tile, or `rows` for tile tiles().
  int64_t TileBegin(int64_t tile) const;
  // Segment s consists of tiles [SegmentTile(s), SegmentTile(s + 1)), which are
  // rows [SegmentBegin(s), SegmentBegin(s + 1)).
  int64_t SegmentTile(int64_t segment) const {
    return tiles() * segment / segments;
  }
  int64_t SegmentBegin(int64_t segment) const {
    return TileBegin(SegmentTile(segment));
  }
};

// Returns whether the elements lie in memory as with channels last.
constexpr bool IsChannelsLast(const ActivationShape& shape) {
  return shape.layout == Layout::kNhwc || shape.hw == 1;
}

// Returns whether the elements lie in planes of blocks of channels.
constexpr bool IsBlocked(const ActivationShape& shape) {
  return shape.layout == Layout::kNchw16c && shape.hw > 1;
}

// Returns whether tiles of blocked channels can be read where they lie, if no
// type is converted. This holds if each tile is one strip or whole groups of
// four rows.
constexpr bool TilesLieInPlace(const ActivationShape& shape) {
  return 2 * shape.hw > kTileRows || shape.hw % 4 == 0;
}

// Channels [begin, begin + size) of a shape: some of its blocks if channels are
// blocked, otherwise all channels.
struct ChannelRange {
  int64_t begin = 0;
  int64_t size = 0;

  // Returns the number of elements of the first sample before the range.
  int64_t offset(const ActivationShape& shape) const {
    return begin * shape.hw;
  }
};

constexpr ChannelRange AllChannels(const ActivationShape& shape) {
  return {.begin = 0, .size = shape.c};
}

// Returns the plan for these channels. Their series are cut as those of all
// channels are.
ColumnPlan MakeColumnPlan(const ActivationShape& shape, ChannelRange range);
inline ColumnPlan MakeColumnPlan(const ActivationShape& shape) {
  return MakeColumnPlan(shape, AllChannels(shape));
}

// Returns how many pixels of c channels, side by side, are whole vectors of 16
// and at least 256 values long. Returns 1 if that would take too many pixels.
int64_t PixelsPerRow(int64_t channels);

// How a value of a run finds its parameter.
enum class RunKind {
  kPlane,   // The values of a plane share one parameter.
  kColumn,  // The place in the run, which is some whole pixels, selects it.
  kBlock,   // The place modulo 16 in the plane of a block selects it.
};

// The view of activations as runs, for element-wise operations. Run 0 is the
// first in memory. Planes follow one another, and so do runs of whole pixels.
// For a block of channels, the planes of all samples are successive runs,
// `stride` elements apart.
struct RunPlan {
  RunKind kind = RunKind::kPlane;
  int64_t channels = 1;
  int64_t run = 1;
  int64_t runs = 0;
  int64_t size = 0;     // The last run may be shorter.
  int64_t samples = 1;  // For kBlock: the number of runs of one block.
  int64_t stride = 0;   // For kBlock: elements from one run to the next.

  // Returns the number of elements in an array of parameters.
  int64_t parameters() const {
    return kind == RunKind::kColumn ? run : channels;
  }
};

RunPlan MakeRunPlan(const ActivationShape& shape, ChannelRange range);

// Repeats the first `channels` values up to `size`.
template <typename T>
void RepeatChannels(int64_t channels, int64_t size, T* values) {
  for (int64_t i = channels; i < size; ++i) values[i] = values[i - channels];
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_WORKSPACE_H_
