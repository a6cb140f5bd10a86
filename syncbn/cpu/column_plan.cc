#include "syncbn/cpu/column_plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "syncbn/activations.h"

namespace lockstep {
namespace {

constexpr int64_t kVector = 16;
constexpr int64_t kLongRow = 256;
// Of rows that consist of several pixels: their parameters, some arrays of
// float64, stay in the caches.
constexpr int64_t kLongestRow = 4096;
// Values of one segment, and segments, at most: enough for every core, and the
// merge of segments stays a small part.
constexpr int64_t kSegmentValues = int64_t{1} << 17;
constexpr int64_t kMaxSegments = 64;
// With fewer rows than this the columns' own merge costs more than rows gain.
constexpr int64_t kFewRows = 16;

int64_t TilesOf(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

}  // namespace

int64_t ColumnPlan::SegmentBegin(int64_t segment) const {
  return std::min(rows, TilesOf(rows) * segment / segments * kTileRows);
}

int64_t PixelsPerRow(int64_t channels) {
  const int64_t step = kVector / std::gcd(kVector, channels);
  const int64_t wanted = (kLongRow + channels - 1) / channels;
  const int64_t pixels = (wanted + step - 1) / step * step;
  return pixels * channels <= std::max(kLongestRow, channels) ? pixels : 1;
}

ColumnPlan MakeColumnPlan(const ActivationShape& shape) {
  ColumnPlan plan;
  const bool last = IsChannelsLast(shape);
  plan.series = last ? 1 : shape.c;
  plan.period = last ? shape.c : 1;
  plan.group = kTileColumns;
  const int64_t periods = shape.values_per_channel();
  if (last) {
    const bool whole = shape.c >= kTileColumns && shape.c % kVector == 0;
    plan.group = whole ? 1 : PixelsPerRow(shape.c);
    if (periods < kFewRows * plan.group) plan.group = 1;
  }
  plan.rows = periods / plan.group;
  plan.rest = periods % plan.group;
  const int64_t values = plan.rows * plan.columns();
  plan.segments = std::clamp<int64_t>(
      std::min(values / kSegmentValues, TilesOf(plan.rows)), 1, kMaxSegments);
  return plan;
}

}  // namespace lockstep
