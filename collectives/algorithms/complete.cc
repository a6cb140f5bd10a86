// The last addition of a reduction by messages.
#include "collectives/algorithms/complete.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "collectives/algorithms/reduction.h"
#include "collectives/data_type.h"

namespace lockstep {
namespace {

// Accumulators between the addition and its rounding: few enough to stay in the
// first-level cache.
constexpr int64_t kStepBytes = 4 << 10;

}  // namespace

void CompleteReduction(const Reduction& reduction, const void* earlier,
                       const void* last, std::span<void* const> outputs,
                       int64_t n) {
  if (reduction.accumulates_in_place()) {
    const void* const inputs[] = {earlier, last};
    reduction.Fold(inputs, outputs, n);
    return;
  }
  alignas(64) std::byte sums[kStepBytes];
  const int64_t element = SizeOf(reduction.type());
  const int64_t accumulator = SizeOf(reduction.accumulator());
  const int64_t step = kStepBytes / accumulator;
  for (int64_t i = 0; i < n; i += step) {
    const int64_t size = std::min(step, n - i);
    reduction.Accumulate(
        static_cast<const std::byte*>(earlier) + i * accumulator,
        static_cast<const std::byte*>(last) + i * element, sums, size);
    std::byte* const first = static_cast<std::byte*>(outputs[0]) + i * element;
    reduction.Finish(sums, first, size);
    for (void* const output : outputs.subspan(1)) {
      std::memcpy(static_cast<std::byte*>(output) + i * element, first,
                  static_cast<size_t>(size * element));
    }
  }
}

}  // namespace lockstep
