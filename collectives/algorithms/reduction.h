// The arithmetic of reductions on the CPU, and copies of a call's data, through
// the caches and past them.
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

// One reduction over world_size ranks, with the meaning that collective.h
// gives it. Partial results are held in accumulators: float32 for the 16-bit
// floats, int64 for averages of int32 and uint8, else the type itself. The same
// operands in the same order give the same bits, whatever mixture of these
// functions made them and whatever the processor.
//
// Memory is of any alignment. Each function takes n elements, n >= 0.
class Reduction {
 public:
  Reduction(DataType type, ReduceOp op, int world_size);

  DataType type() const { return type_; }
  DataType accumulator() const { return accumulator_; }
  // Whether accumulators are elements, which Finish may still divide.
  bool accumulates_in_place() const { return type_ == accumulator_; }

  // accumulator = the first operand.
  void Begin(const void* input, void* accumulator, int64_t n) const;

  // result = earlier op input. earlier and result are accumulators, and may be
  // the same memory; input holds elements, and may be result where
  // accumulates_in_place().
  void Accumulate(const void* earlier, const void* input, void* result,
                  int64_t n) const;

  // result = earlier op later, all accumulators; result may be either.
  void Merge(const void* earlier, const void* later, void* result,
             int64_t n) const;

  // output = the accumulator as elements, divided by world_size for kAverage.
  // May be the same memory where accumulates_in_place().
  void Finish(const void* accumulator, void* output, int64_t n) const;

  // All at once: every output = ((inputs[0] op inputs[1]) op inputs[2]) ...,
  // finished. At least one input; outputs may be among the inputs. Reads each
  // input and writes each output once.
  void Fold(std::span<const void* const> inputs, std::span<void* const> outputs,
            int64_t n) const;

  // The same in the order of a balanced tree over the inputs (schedule.h).
  void FoldTree(std::span<const void* const> inputs,
                std::span<void* const> outputs, int64_t n) const;

 private:
  // Whether Fold is one loop over few elements, which needs no blocks: these
  // would take half of the time.
  bool IsOneAddition(std::span<const void* const> inputs,
                     std::span<void* const> outputs, int64_t n) const;

  DataType type_;
  int world_size_;
  DataType accumulator_;
  const ReductionKernels* kernels_;
};

// Every output = (earlier op last), finished, for n elements: accumulators op
// elements gives elements. Outputs may be `last`, and at least one; they do not
// overlap `earlier`. Any alignment.
void CompleteReduction(const Reduction& reduction, const void* earlier,
                       const void* last, std::span<void* const> outputs,
                       int64_t n);

// to = from, of the same size; nothing where they are the same memory, as in
// place. Both may be null where they are empty.
inline void CopyElements(ConstBuffer from, Buffer to) {
  if (from.count == 0 || from.data == to.data) return;
  std::memcpy(to.data, from.data, static_cast<size_t>(from.size_bytes()));
}

// What a processor writes to memory at once.
inline constexpr int64_t kCacheLineBytes = 64;

// to = from, of any alignment, which do not overlap. Whole lines of `to` are
// written without being read first, as stores into a cache have it, and are
// then in no cache: a third less traffic if they are not needed soon. Other
// processors may see these bytes late, until FinishStreaming().
//
// A plain copy where the processor has no such stores.
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

// Makes what this thread has streamed visible before what it writes next.
inline void FinishStreaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_H_
