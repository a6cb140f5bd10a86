#include "syncbn/cpu/workspace.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <numeric>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

// The OpenMP runtime that oneDNN links, called as a compiler would call it. The
// functions are declared here because <omp.h> is absent if the compiler's own
// OpenMP is not installed. GCC's and LLVM's runtimes both have these functions.
extern "C" {
int omp_get_max_threads();
int omp_get_num_threads();
int omp_get_thread_num();
int omp_in_parallel();
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads,
                   unsigned flags);
}

namespace lockstep {
namespace {

constexpr int64_t kVector = 16;
constexpr int64_t kLongRow = 256;
// The longest row of several pixels. The parameters of such a row, some arrays
// of float64, stay in the caches.
constexpr int64_t kLongestRow = 4096;
// The most values of a segment, and the most segments. This is enough for every
// core, and merging segments takes a small part of the time.
constexpr int64_t kSegmentValues = int64_t{1} << 17;
constexpr int64_t kMaxSegments = 64;
// With fewer rows than this, merging the columns costs more than long rows
// gain.
constexpr int64_t kMinRows = 16;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The runtime synchronises its threads, but the thread sanitizer cannot see
// this, since the distribution's runtime is built without it. The two atomics
// state the same order in a way that it sees.
struct Loop {
  absl::FunctionRef<void(int64_t, int64_t, int)> body;
  int64_t items;
  std::atomic<bool> started = false;
  std::atomic<int> finished = 0;
};

void RunPart(void* data) {
  Loop& loop = *static_cast<Loop*>(data);
  (void)loop.started.load(std::memory_order_acquire);
  // The runtime may give fewer threads than requested.
  const int64_t threads = omp_get_num_threads();
  const int64_t thread = omp_get_thread_num();
  const int64_t begin = loop.items * thread / threads;
  const int64_t end = loop.items * (thread + 1) / threads;
  if (begin < end) loop.body(begin, end, static_cast<int>(thread));
  loop.finished.fetch_add(1, std::memory_order_release);
}

constexpr std::align_val_t kAlignment{64};

}  // namespace

int MaxParallelThreads() { return omp_get_max_threads(); }

void ParallelFor(int64_t items, int64_t work,
                 absl::FunctionRef<void(int64_t, int64_t, int)> body) {
  if (items <= 0) return;
  const int64_t threads =
      std::min<int64_t>({items, work / kWorkOfThread, omp_get_max_threads()});
  if (threads <= 1 || omp_in_parallel()) {
    body(0, items, 0);
    return;
  }
  Loop loop = {.body = body, .items = items};
  loop.started.store(true, std::memory_order_release);
  GOMP_parallel(RunPart, &loop, static_cast<unsigned>(threads), 0);
  (void)loop.finished.load(std::memory_order_acquire);
}

absl::StatusOr<std::shared_ptr<std::byte>> AllocateHost(int64_t bytes) {
  void* const memory =
      ::operator new(static_cast<size_t>(std::max<int64_t>(bytes, 1)),
                     kAlignment, std::nothrow);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("batch norm: no host memory for ", bytes, " bytes"));
  }
  return std::shared_ptr<std::byte>(
      static_cast<std::byte*>(memory),
      [](std::byte* p) { ::operator delete(p, kAlignment); });
}

absl::StatusOr<std::byte*> Scratch::Reserve(int64_t bytes) {
  if (bytes > bytes_ || memory_ == nullptr) {
    memory_ = nullptr;
    bytes_ = 0;
    LOCKSTEP_ASSIGN_OR_RETURN(memory_, AllocateHost(bytes));
    bytes_ = bytes;
  }
  return memory_.get();
}

int64_t ColumnPlan::tiles() const {
  const int64_t in_band = CeilDivide(band_rows, tile_rows);
  return rows / band_rows * in_band + CeilDivide(rows % band_rows, tile_rows);
}

int64_t ColumnPlan::TileBegin(int64_t tile) const {
  const int64_t in_band = CeilDivide(band_rows, tile_rows);
  return std::min(rows,
                  tile / in_band * band_rows + tile % in_band * tile_rows);
}

int64_t PixelsPerRow(int64_t channels) {
  const int64_t step = kVector / std::gcd(kVector, channels);
  const int64_t wanted = (kLongRow + channels - 1) / channels;
  const int64_t pixels = (wanted + step - 1) / step * step;
  return pixels * channels <= std::max(kLongestRow, channels) ? pixels : 1;
}

ColumnPlan MakeColumnPlan(const ActivationShape& shape, ChannelRange range) {
  ColumnPlan plan;
  const bool last = IsChannelsLast(shape);
  const bool blocked = IsBlocked(shape);
  plan.period = last ? shape.c : blocked ? kChannelBlock : 1;
  plan.series = range.size / plan.period;
  plan.group = blocked ? 1 : kTileColumns;
  const int64_t periods = shape.values_per_channel();
  if (last) {
    const bool whole = shape.c >= kTileColumns && shape.c % kVector == 0;
    plan.group = whole ? 1 : PixelsPerRow(shape.c);
    if (periods < kMinRows * plan.group) plan.group = 1;
  }
  if (blocked) {
    const int64_t planes = std::max<int64_t>(1, kTileRows / shape.hw);
    plan.band_rows = planes * shape.hw;
    plan.tile_rows = std::min(plan.band_rows, kTileRows);
  }
  plan.rows = periods / plan.group;
  plan.rest = periods % plan.group;
  const int64_t values = plan.rows * plan.columns();
  plan.segments = std::clamp<int64_t>(
      std::min(values / kSegmentValues, plan.tiles()), 1, kMaxSegments);
  return plan;
}

RunPlan MakeRunPlan(const ActivationShape& shape, ChannelRange range) {
  RunPlan plan;
  plan.channels = range.size;
  plan.size = shape.n * range.size * shape.hw;
  if (IsChannelsLast(shape)) {
    plan.kind = RunKind::kColumn;
    plan.run = shape.c * PixelsPerRow(shape.c);
  } else if (IsBlocked(shape)) {
    plan.kind = RunKind::kBlock;
    plan.run = shape.hw * kChannelBlock;
    plan.samples = shape.n;
    plan.stride = shape.c * shape.hw;
  } else {
    plan.run = shape.hw;
  }
  plan.runs = CeilDivide(plan.size, plan.run);
  return plan;
}

}  // namespace lockstep
