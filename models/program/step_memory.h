// The placement of a step's buffers: buffers that are never needed at the same
// time share memory.
#ifndef LOCKSTEP_MODELS_PROGRAM_STEP_MEMORY_H_
#define LOCKSTEP_MODELS_PROGRAM_STEP_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"

namespace lockstep {

// Returns the number of bytes rounded up to a multiple of 64, so that the next
// buffer is aligned to 64.
constexpr int64_t AlignedBytes(int64_t bytes) {
  constexpr int64_t kUnit = AlignedBuffer::kAlignment;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

// Returns `start` plus `bytes`; null if `start` is null.
inline void* Offset(void* start, int64_t bytes) {
  return start == nullptr ? nullptr : static_cast<char*>(start) + bytes;
}

// Places buffers in one array. Each buffer has a first and a last time of use.
class Arena {
 public:
  // Adds a buffer and returns its number. bytes: 0 allowed. first <= last.
  int Add(int64_t bytes, int first, int last);
  // Extends the lifetime of buffer `id` to include [first, last].
  void Extend(int id, int first, int last);

  // Places every buffer, the largest first, each at the lowest free offset.
  // Cost: quadratic in the number of buffers.
  void Place();

  int64_t offset(int id) const { return buffers_[id].offset; }  // After Place.
  int64_t size() const { return size_; }  // In bytes; after Place.

 private:
  struct Buffer {
    int64_t bytes;
    int first, last;
    int64_t offset = 0;
  };

  int64_t LowestFreeOffset(const Buffer& buffer,
                           const std::vector<const Buffer*>& placed) const;

  std::vector<Buffer> buffers_;
  int64_t size_ = 0;
};

// The placement of the operations' buffers: byte offsets into a step's memory,
// or kNowhere. Operation i is planned by plans[i], and its output is value i
// + 1.
struct StepMemory {
  static constexpr int64_t kNowhere = -1;

  struct Operation {
    int64_t saved = kNowhere;
    int64_t forward_scratch = kNowhere;
    int64_t backward_scratch = kNowhere;
    // The destinations of the gradients of the two inputs in the backward pass.
    int64_t dx = kNowhere;
    int64_t dsecond = kNowhere;
    // Whether dx and dsecond must then be added to the value's gradient.
    bool add_dx = false;
    bool add_dsecond = false;
  };

  std::vector<Operation> operations;
  std::vector<int64_t> values;     // Value 0, the input, is elsewhere.
  std::vector<int64_t> gradients;  // By value; the input has none.
  int64_t bytes = 0;
};

struct MemoryOptions {
  int64_t batch = 0;          // In samples.
  int64_t element_bytes = 4;  // The size of an activation.
  bool training = true;       // False: evaluation.
  bool share = true;          // False: no sharing of memory.
};

// Plans the memory of a step.
StepMemory PlanMemory(const Network& network,
                      const std::vector<std::unique_ptr<OperationPlan>>& plans,
                      const MemoryOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_PROGRAM_STEP_MEMORY_H_
