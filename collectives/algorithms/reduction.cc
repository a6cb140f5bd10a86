#include "collectives/algorithms/reduction.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/data_types.h"
#include "base/vector_unit.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

// The bytes of accumulators in a block. A block stays in the first-level cache
// until it is finished and copied. It is small enough for one block per level
// of a tree on the stack.
constexpr int64_t kBlockBytes = 4 << 10;

// The bytes that a reduction must touch to stream its outputs. Outputs of that
// size would push the next inputs out of the cache, and be pushed out
// themselves before anyone reads them. The limit is half of a last-level cache
// of 32 MiB, because other ranks reduce their parts at the same time.
constexpr int64_t kStreamedBytes = 16 << 20;

struct alignas(kCacheLineBytes) Block {
  std::byte bytes[kBlockBytes];
};

const std::byte* At(const void* memory, int64_t offset) {
  return static_cast<const std::byte*>(memory) + offset;
}
std::byte* At(void* memory, int64_t offset) {
  return static_cast<std::byte*>(memory) + offset;
}

void Copy(const void* from, void* to, int64_t bytes) {
  if (from != to && bytes > 0) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

// Reduces several inputs, block by block. If accumulators are elements and need
// no finishing, it makes no needless copy of a block.
class Folder {
 public:
  Folder(const ReductionKernels& kernels, int world_size, DataType type,
         DataType accumulator, std::span<const void* const> inputs,
         std::span<void* const> outputs)
      : kernels_(kernels),
        world_size_(world_size),
        element_(SizeOf(type)),
        step_(kBlockBytes / SizeOf(accumulator)),
        inputs_(inputs),
        outputs_(outputs) {}

  void Run(bool tree, int64_t n) {
    if (outputs_.empty()) return;
    const auto buffers = static_cast<int64_t>(inputs_.size() + outputs_.size());
    const bool large = n >= kStreamedBytes / (buffers * element_);
    for (int64_t i = 0; i < n; i += step_) {
      offset_ = i * element_;
      size_ = std::min(step_, n - i);
      if (large) PrefetchNextBlock();
      RunBlock(tree, large);
    }
    if (large) FinishStreaming();
  }

 private:
  void RunBlock(bool tree, bool large) const {
    Block finished;
    std::byte* const first = At(outputs_[0], offset_);
    std::byte* const target =
        large && Streams(outputs_[0]) ? finished.bytes : first;
    Block room;
    void* const sums = kernels_.finish == nullptr ? target : room.bytes;
    const void* const result =
        tree ? Tree(0, static_cast<int>(inputs_.size()), sums) : Chain(sums);
    if (kernels_.finish != nullptr) {
      kernels_.finish(result, target, size_, world_size_);
    } else {
      Copy(result, target, size_ * element_);
    }
    for (void* const output : outputs_) {
      std::byte* const to = At(output, offset_);
      if (large && Streams(output)) {
        StreamCopy(target, to, size_ * element_);
      } else {
        Copy(target, to, size_ * element_);
      }
    }
  }

  // Prefetches the first half of the next blocks. The processor's prefetcher
  // does not look past a page, and a block of 4 KiB ends at a page or crosses
  // one. The prefetcher takes over in the middle of the next block.
  void PrefetchNextBlock() const {
    for (const void* const input : inputs_) {
      const std::byte* const next = At(input, offset_ + kBlockBytes);
      for (int64_t i = 0; i < kBlockBytes / 2; i += kCacheLineBytes) {
        __builtin_prefetch(next + i, /*rw=*/1, /*locality=*/2);
      }
    }
  }

  // Returns whether to stream `output`. An input that was just read is in the
  // cache, where writing is faster.
  bool Streams(const void* output) const {
    return std::find(inputs_.begin(), inputs_.end(), output) == inputs_.end();
  }

  // Returns one input as accumulators; in `room` if it must be widened.
  const void* Leaf(int input, void* room) const {
    const std::byte* const elements = At(inputs_[input], offset_);
    if (kernels_.begin == nullptr) return elements;
    kernels_.begin(elements, room, size_);
    return room;
  }

  // Returns ((inputs[0] op inputs[1]) op inputs[2]) ...; in `sums` if there are
  // several inputs. `sums` may be part of an output, which may be an input.
  // Chain therefore writes `sums` only after it has read all inputs but the
  // last.
  const void* Chain(void* sums) const {
    Block room;
    const size_t last = inputs_.size() - 1;
    const void* earlier = Leaf(0, last == 0 ? sums : room.bytes);
    for (size_t i = 1; i <= last;) {
      const bool three = kernels_.accumulate_three != nullptr && i + 2 <= last;
      const size_t next = i + (three ? 3 : 1);
      void* const result = next > last ? sums : room.bytes;
      if (three) {
        const void* const later[] = {At(inputs_[i], offset_),
                                     At(inputs_[i + 1], offset_),
                                     At(inputs_[i + 2], offset_)};
        kernels_.accumulate_three(earlier, later, result, size_);
      } else {
        kernels_.accumulate(earlier, At(inputs_[i], offset_), result, size_);
      }
      earlier = result;
      i = next;
    }
    return earlier;
  }

  // Returns the node of ranks [begin, end); in `sums` if there are several
  // ranks. Writes `sums` only as late as Chain does.
  const void* Tree(int begin, int end, void* sums) const {
    if (end - begin == 1) return Leaf(begin, sums);
    const int split = TreeSplit(static_cast<int>(inputs_.size()), begin, end);
    Block earlier_room;
    Block later_room;
    const void* const earlier = Tree(begin, split, earlier_room.bytes);
    const void* const later = Tree(split, end, later_room.bytes);
    kernels_.merge(earlier, later, sums, size_);
    return sums;
  }

  const ReductionKernels& kernels_;
  const int world_size_;
  const int64_t element_;  // In bytes.
  const int64_t step_;     // In elements.
  const std::span<const void* const> inputs_;
  const std::span<void* const> outputs_;
  // The current block.
  int64_t offset_ = 0;  // In bytes.
  int64_t size_ = 0;    // In elements.
};

}  // namespace

Reduction::Reduction(DataType type, ReduceOp op, int world_size)
    : type_(type),
      world_size_(world_size),
      accumulator_(AccumulatorOf(type, op)),
      kernels_(&ReductionKernelsFor(type, op, BestVectorUnit())) {}

void Reduction::Begin(const void* input, void* accumulator, int64_t n) const {
  if (kernels_->begin == nullptr) {
    return Copy(input, accumulator, n * SizeOf(type_));
  }
  kernels_->begin(input, accumulator, n);
}

void Reduction::Accumulate(const void* earlier, const void* input, void* result,
                           int64_t n) const {
  kernels_->accumulate(earlier, input, result, n);
}

void Reduction::Merge(const void* earlier, const void* later, void* result,
                      int64_t n) const {
  kernels_->merge(earlier, later, result, n);
}

void Reduction::Finish(const void* accumulator, void* output, int64_t n) const {
  if (kernels_->finish == nullptr) {
    return Copy(accumulator, output, n * SizeOf(type_));
  }
  kernels_->finish(accumulator, output, n, world_size_);
}

bool Reduction::IsOneAddition(std::span<const void* const> inputs,
                              std::span<void* const> outputs, int64_t n) const {
  return inputs.size() == 2 && outputs.size() == 1 &&
         kernels_->begin == nullptr && kernels_->finish == nullptr &&
         n <= kBlockBytes / SizeOf(type_);
}

void Reduction::Fold(std::span<const void* const> inputs,
                     std::span<void* const> outputs, int64_t n) const {
  if (IsOneAddition(inputs, outputs, n)) {
    return kernels_->accumulate(inputs[0], inputs[1], outputs[0], n);
  }
  Folder(*kernels_, world_size_, type_, accumulator_, inputs, outputs)
      .Run(/*tree=*/false, n);
}

void Reduction::FoldTree(std::span<const void* const> inputs,
                         std::span<void* const> outputs, int64_t n) const {
  if (IsOneAddition(inputs, outputs, n)) {
    return kernels_->merge(inputs[0], inputs[1], outputs[0], n);
  }
  Folder(*kernels_, world_size_, type_, accumulator_, inputs, outputs)
      .Run(/*tree=*/true, n);
}

void CompleteReduction(const Reduction& reduction, const void* earlier,
                       const void* last, std::span<void* const> outputs,
                       int64_t n) {
  if (reduction.accumulates_in_place()) {
    const void* const inputs[] = {earlier, last};
    reduction.Fold(inputs, outputs, n);
    return;
  }
  Block sums;  // The sums before they are rounded.
  const int64_t element = SizeOf(reduction.type());
  const int64_t accumulator = SizeOf(reduction.accumulator());
  const int64_t step = kBlockBytes / accumulator;
  for (int64_t i = 0; i < n; i += step) {
    const int64_t size = std::min(step, n - i);
    reduction.Accumulate(
        static_cast<const std::byte*>(earlier) + i * accumulator,
        static_cast<const std::byte*>(last) + i * element, sums.bytes, size);
    std::byte* const first = static_cast<std::byte*>(outputs[0]) + i * element;
    reduction.Finish(sums.bytes, first, size);
    for (void* const output : outputs.subspan(1)) {
      std::memcpy(static_cast<std::byte*>(output) + i * element, first,
                  static_cast<size_t>(size * element));
    }
  }
}

}  // namespace lockstep
