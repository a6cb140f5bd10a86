// What a rank's loops run on, its threads and scratch memory; and how they go
// over activations, from the shape alone: columns, rows and segments for
// reductions, whose order of additions so depends on nothing else; runs for
// operations on each element by itself.
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

// How many threads ParallelFor may use when the calling thread calls it: as
// many as oneDNN would (omp_get_max_threads).
int MaxParallelThreads();

// The least work for each thread: with less, another is not worth starting.
inline constexpr int64_t kWorkOfThread = int64_t{1} << 15;

// Cuts [0, items) into one contiguous part for each thread, in order, and calls
// `body(begin, end, thread)` for each part that is not empty; returns when all
// are done. thread: in [0, MaxParallelThreads()), different for parts that run
// at the same time. work: how many numbers all of it goes over; no more threads
// take part than have kWorkOfThread of them. With one thread, or inside another
// such loop, it is a plain call. body must not throw.
void ParallelFor(
    int64_t items, int64_t work,
    absl::FunctionRef<void(int64_t begin, int64_t end, int thread)> body);

// Host memory aligned to 64. Errors: kResourceExhausted.
absl::StatusOr<std::shared_ptr<std::byte>> AllocateHost(int64_t bytes);

// Host memory that is kept from call to call and grows as needed.
class Scratch {
 public:
  // At least `bytes`, aligned to 64, unspecified, until the next call.
  absl::StatusOr<std::byte*> Reserve(int64_t bytes);

 private:
  std::shared_ptr<std::byte> memory_;
  int64_t bytes_ = 0;
};

inline constexpr int64_t kTileRows = 64;
inline constexpr int64_t kTileColumns = 64;
// PixelsPerRow(1).
inline constexpr int64_t kMaxPixelsPerRow = 256;

// Activations are seen as `series` series of values. With channels last there
// is one series, in which the channels alternate with a period of c. With
// channels first there is one for each channel: its planes, one after the
// other, with a period of 1. A series is a matrix of rows of `group` periods
// side by side, so that a row is long enough for vectors, and then `rest`
// periods that fill no row. Column j belongs to channel j % period. With
// blocked channels there is one series for each block: its planes, one after
// the other, with a period of 16, of which each is a row.
//
// Rows are reduced in tiles: each column of a tile by itself. Then tiles are
// merged in order, then the columns of a channel, then the rest, and last the
// segments that the tiles are cut into, in order.
struct ColumnPlan {
  int64_t series = 0;
  int64_t period = 1;
  int64_t group = 1;
  int64_t rows = 0;      // Of `columns()` values, in each series.
  int64_t rest = 0;      // Periods after the last row; less than `group`.
  int64_t segments = 1;  // Of each series' tiles; the last has the rest too.
  // The rows of a tile, at most kTileRows. A tile ends where a band of rows
  // ends: with blocked channels it is a part of a plane, or some whole planes.
  int64_t tile_rows = kTileRows;
  int64_t band_rows = kTileRows;

  int64_t columns() const { return group * period; }
  int64_t size() const { return series * (rows * group + rest) * period; }
  int64_t items() const { return series * segments; }
  int64_t tiles() const;  // Of the rows of a series.
  // The first row of a tile; `rows` of tile tiles().
  int64_t TileBegin(int64_t tile) const;
  // Segment s is tiles [SegmentTile(s), SegmentTile(s + 1)), and these rows
  // [SegmentBegin(s), SegmentBegin(s + 1)).
  int64_t SegmentTile(int64_t segment) const {
    return tiles() * segment / segments;
  }
  int64_t SegmentBegin(int64_t segment) const {
    return TileBegin(SegmentTile(segment));
  }
};

// Whether the elements lie in memory as with channels last.
constexpr bool IsChannelsLast(const ActivationShape& shape) {
  return shape.layout == Layout::kNhwc || shape.hw == 1;
}

// Whether the elements lie in planes of blocks of channels.
constexpr bool IsBlocked(const ActivationShape& shape) {
  return shape.layout == Layout::kNchw16c && shape.hw > 1;
}

// Whether tiles of blocked channels are whole groups of four rows side by side
// or one strip, and so can be read, if no type is converted, where they lie.
constexpr bool TilesLieInPlace(const ActivationShape& shape) {
  return 2 * shape.hw > kTileRows || shape.hw % 4 == 0;
}

// Channels [begin, begin + size) of a shape: some of its blocks, if channels
// are blocked, else all.
struct ChannelRange {
  int64_t begin = 0;
  int64_t size = 0;

  // The elements of the first sample before the range.
  int64_t offset(const ActivationShape& shape) const {
    return begin * shape.hw;
  }
};

constexpr ChannelRange AllChannels(const ActivationShape& shape) {
  return {.begin = 0, .size = shape.c};
}

// The series of these channels are cut as those of all channels are.
ColumnPlan MakeColumnPlan(const ActivationShape& shape, ChannelRange range);
inline ColumnPlan MakeColumnPlan(const ActivationShape& shape) {
  return MakeColumnPlan(shape, AllChannels(shape));
}

// How many pixels of c channels, side by side, are whole vectors of 16 and at
// least 256 values long; 1 if that would take too many.
int64_t PixelsPerRow(int64_t channels);

// How a value of a run finds its parameter.
enum class RunKind {
  kPlane,   // The values of a plane share one parameter.
  kColumn,  // By its place in the run, which is some whole pixels.
  kBlock,   // By its place modulo 16 in the plane of a block of channels.
};

// Activations as runs. Run 0 is the first in memory. Planes follow one another,
// as do runs of whole pixels; of a block of channels the planes of all samples
// are runs one after the other, which lie `stride` apart.
struct RunPlan {
  RunKind kind = RunKind::kPlane;
  int64_t channels = 1;
  int64_t run = 1;
  int64_t runs = 0;
  int64_t size = 0;     // The last run may be short.
  int64_t samples = 1;  // Of kBlock: runs of one block,
  int64_t stride = 0;   // and elements from one of them to the next.

  // Elements of an array of parameters.
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
