// The arithmetic of reductions on the CPU, and copies of a call's data that go
// through the caches or bypass them.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/data_types.h"
#include "collectives/collective.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lockstep {

struct ReductionKernels;

// One reduction over world_size ranks, as defined in collective.h. Partial
// results are held in accumulators: float32 for the 16-bit floats, int64 for
// averages of int32 and uint8, else the type itself. The same operands in the
// same order give the same bits on every processor, with any combination of
// these functions.
//
// Memory may have any alignment. Each function takes n elements, n >= 0.
class Reduction {
 public:
  Reduction(DataType type, ReduceOp op, int world_size);

  DataType type() const { return type_; }
  DataType accumulator() const { return accumulator_; }
  // Returns whether accumulators are elements (Finish may still divide them).
  bool accumulates_in_place() const { return type_ == accumulator_; }

  // Stores the first operand in `accumulator`.
  void Begin(const void* input, void* accumulator, int64_t n) const;

  // Computes result = earlier op input. `earlier` and `result` are accumulators
  // and may be the same memory. `input` holds elements; it may be `result` if
  // accumulates_in_place().
  void Accumulate(const void* earlier, const void* input, void* result,
                  int64_t n) const;

  // Computes result = earlier op later. All are accumulators; result may be
  // either operand.
  void Merge(const void* earlier, const void* later, void* result,
             int64_t n) const;

  // Stores the accumulator as elements in `output`, divided by world_size for
  // kAverage. Both may be the same memory if accumulates_in_place().
  void Finish(const void* accumulator, void* output, int64_t n) const;

  // Computes the whole reduction: every output = ((inputs[0] op inputs[1]) op
  // inputs[2]) ..., finished. Needs at least one input; outputs may be among
  // the inputs. Reads each input and writes each output once.
  void Fold(std::span<const void* const> inputs, std::span<void* const> outputs,
            int64_t n) const;

  // Folds like Fold, in the order of a balanced tree over the inputs
  // (schedule.h).
  void FoldTree(std::span<const void* const> inputs,
                std::span<void* const> outputs, int64_t n) const;

 private:
  // Returns whether Fold is one loop over few elements and so needs no blocks.
  // Blocks would take half of the time.
  bool IsOneAddition(std::span<const void* const> inputs,
                     std::span<void* const> outputs, int64_t n) const;

  DataType type_;
  int world_size_;
  DataType accumulator_;
  const ReductionKernels* kernels_;
};

// Computes every output = (earlier op last), finished, for n elements.
// `earlier` holds accumulators, `last` and the outputs hold elements. There is
// at least one output. An output may be `last`; none overlaps `earlier`. Memory
// may have any alignment.
void CompleteReduction(const Reduction& reduction, const void* earlier,
                       const void* last, std::span<void* const> outputs,
                       int64_t n);

// Copies `from` to `to`, of the same size. Does nothing if both are the same
// memory, as in place. Empty buffers may be null.
inline void CopyElements(ConstBuffer from, Buffer to) {
  if (from.count == 0 || from.data == to.data) return;
  std::memcpy(to.data, from.data, static_cast<size_t>(from.size_bytes()));
}

// The bytes that a processor writes to memory at once.
inline constexpr int64_t kCacheLineBytes = 64;

// Copies `from` to `to`, which do not overlap and may have any alignment.
// Writes whole lines of `to` to memory: unlike a store into a cache, it does
// not read them first. The lines are then in no cache. That is a third less
// traffic if they are not needed soon. Other processors may see these bytes
// late, until FinishStreaming().
//
// If the processor has no such stores, StreamCopy is a plain copy.
inline void StreamCopy(const std::byte* from, std::byte* to, int64_t bytes) {
#if defined(__SSE2__)
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to));
  const int64_t to_line = -address & (kCacheLineBytes - 1);
  if (bytes >= to_line + kCacheLineBytes) {
    std::memcpy(to, from, static_cast<size_t>(to_line));
    int64_t i = to_line;
    for (; i + kCacheLineBytes <= bytes; i += kCacheLineBytes) {
      __m128i line[4];
      std::memcpy(line, from + i, sizeof(line));
      for (int k = 0; k < 4; ++k) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i) + k, line[k]);
      }
    }
    from += i;
    to += i;
    bytes -= i;
  }
#endif
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Makes all data that this thread has streamed visible before its next writes.
inline void FinishStreaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_H_
