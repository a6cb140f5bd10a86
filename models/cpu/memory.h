// Where the buffers of a step lie: those that are never needed at the same time
// share memory.
#ifndef LOCKSTEP_MODELS_CPU_MEMORY_H_
#define LOCKSTEP_MODELS_CPU_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "models/cpu/plan.h"
#include "models/networks/network.h"

namespace lockstep {

// Buffers with the times from which and up to which they are needed, placed in
// one array.
class Arena {
 public:
  // Returns the buffer's number. bytes: 0 allowed. first <= last.
  int Add(int64_t bytes, int first, int last);
  // Makes buffer `id` last from `first` or earlier up to `last` or later.
  void Extend(int id, int first, int last);

  // Places every buffer, the largest first, each as low as it can lie. Cost:
  // quadratic in their number.
  void Place();

  int64_t offset(int id) const { return buffers_[id].offset; }  // Once placed.
  int64_t size() const { return size_; }  // Bytes, likewise.

 private:
  struct Buffer {
    int64_t bytes;
    int first, last;
    int64_t offset = 0;
  };

  int64_t LowestFree(const Buffer& buffer,
                     const std::vector<const Buffer*>& placed) const;

  std::vector<Buffer> buffers_;
  int64_t size_ = 0;
};

// Where an operation's buffers are: byte offsets into a step's memory, or
// kNowhere. Operation i is planned by plans[i], and its output is value i + 1.
struct StepMemory {
  static constexpr int64_t kNowhere = -1;

  struct Operation {
    int64_t saved = kNowhere;
    int64_t forward_scratch = kNowhere;
    int64_t backward_scratch = kNowhere;
    // Where backward writes the gradients of the two inputs.
    int64_t dx = kNowhere;
    int64_t dsecond = kNowhere;
    // Whether those are then to be added to the value's gradient.
    bool add_dx = false;
    bool add_dsecond = false;
  };

  std::vector<Operation> operations;
  std::vector<int64_t> values;     // Value 0, the input, is elsewhere.
  std::vector<int64_t> gradients;  // Of values; none of the input.
  int64_t bytes = 0;
};

struct MemoryOptions {
  int64_t batch = 0;          // Samples.
  int64_t element_bytes = 4;  // Of an activation.
  bool training = true;       // Else an evaluation.
  bool share = true;          // Else each buffer lasts all the time.
};

// The memory of a step.
StepMemory PlanMemory(const Network& network,
                      const std::vector<std::unique_ptr<OperationPlan>>& plans,
                      const MemoryOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_MEMORY_H_
