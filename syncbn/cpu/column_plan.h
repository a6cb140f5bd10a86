// How activations are cut into columns, rows and segments, from their shape
// alone: so that the order of additions depends on nothing else.
#ifndef LOCKSTEP_SYNCBN_CPU_COLUMN_PLAN_H_
#define LOCKSTEP_SYNCBN_CPU_COLUMN_PLAN_H_

#include <cstdint>

#include "syncbn/activations.h"

namespace lockstep {

inline constexpr int64_t kTileRows = 64;
inline constexpr int64_t kTileColumns = 64;
// PixelsPerRow(1).
inline constexpr int64_t kMaxPixelsPerRow = 256;

// Activations are `series` series of values: with channels last one, where the
// values of all channels alternate with a period of c; with channels first one
// for each channel, its planes one after the other, with a period of 1. A
// series is a matrix of rows of `group` periods side by side, so that a row is
// long enough for vectors, and then `rest` periods that fill no row. Column j
// belongs to channel j % period.
//
// Columns are reduced each for itself; then columns of a channel, the rest, and
// last the segments that rows are cut into, in order.
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

// Whether the shape has the order in memory that channels last have.
constexpr bool IsChannelsLast(const ActivationShape& shape) {
  return shape.layout == Layout::kNhwc || shape.hw == 1;
}

// How many pixels of c channels, side by side, are whole vectors of 16 and at
// least 256 values long; 1 if that would take too many.
int64_t PixelsPerRow(int64_t channels);

// How operations on each activation by itself go over a tensor.

// Activations as runs that lie one after the other: with channels last of some
// whole pixels, so that parameters go by the place in a run; with channels
// first of one plane, whose values all have the same.
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

#endif  // LOCKSTEP_SYNCBN_CPU_COLUMN_PLAN_H_
