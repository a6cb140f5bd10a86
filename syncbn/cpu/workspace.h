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
// periods that fill no row. Column j belongs to channel j % period.
//
// Each column is reduced by itself; then the columns of a channel are merged,
// then the rest, and last the segments that rows are cut into, in order.
struct ColumnPlan {
  int64_t series = 0;
  int64_t period = 1;
  int64_t group = 1;
  int64_t rows = 0;      // Of `columns()` values, in each series.
  int64_t rest = 0;      // Periods after the last row; less than `group`.
  int64_t segments = 1;  // Of each series' rows; each a multiple of kTileRows
                         // rows, but for the last, which also has the rest.

  int64_t columns() const { return group * period; }
  int64_t items() const { return series * segments; }
  // Segment s is rows [SegmentBegin(s), SegmentBegin(s + 1)).
  int64_t SegmentBegin(int64_t segment) const;
};

ColumnPlan MakeColumnPlan(const ActivationShape& shape);

// Whether the elements lie in memory as with channels last.
constexpr bool IsChannelsLast(const ActivationShape& shape) {
  return shape.layout == Layout::kNhwc || shape.hw == 1;
}

// How many pixels of c channels, side by side, are whole vectors of 16 and at
// least 256 values long; 1 if that would take too many.
int64_t PixelsPerRow(int64_t channels);

// Activations as runs that lie one after the other. With channels last a run is
// some whole pixels, and the place in the run decides which parameter a value
// has; with channels first it is one plane, whose values share one parameter.
struct RunPlan {
  int64_t channels = 1;
  bool by_column = false;
  int64_t run = 1;
  int64_t runs = 0;
  int64_t size = 0;  // The last run may be short.

  // Elements of an array of parameters.
  int64_t parameters() const { return by_column ? run : channels; }
};

inline RunPlan MakeRunPlan(const ActivationShape& shape) {
  RunPlan plan;
  plan.channels = shape.c;
  plan.by_column = IsChannelsLast(shape);
  plan.run = plan.by_column ? shape.c * PixelsPerRow(shape.c) : shape.hw;
  plan.size = shape.size();
  plan.runs = (plan.size + plan.run - 1) / plan.run;
  return plan;
}

// Repeats the first `channels` values up to `size`.
template <typename T>
void RepeatChannels(int64_t channels, int64_t size, T* values) {
  for (int64_t i = channels; i < size; ++i) values[i] = values[i - channels];
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_WORKSPACE_H_
