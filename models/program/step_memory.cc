#include "models/program/step_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/networks/network.h"
#include "models/program/operation_plan.h"

namespace lockstep {
namespace {

constexpr int kNone = -1;

// Plans a step on a time line: forward of operation i at time i, the loss at
// time L, backward of operation i at time 2 L - i.
class Planner {
 public:
  Planner(const Network& network,
          const std::vector<std::unique_ptr<OperationPlan>>& plans,
          const MemoryOptions& options)
      : operations_(network.operations()),
        plans_(plans),
        batch_bytes_(options.batch * options.element_bytes),
        training_(options.training),
        share_(options.share),
        count_(static_cast<int>(plans.size())),
        values_(count_ + 1, kNone),
        gradients_(count_ + 1, kNone) {}

  StepMemory Run() {
    PlanValues();
    std::vector<BufferIds> ids(count_);
    for (int i = 0; i < count_; ++i) {
      const OperationPlan& plan = *plans_[i];
      ids[i].saved = Add(plan.saved_bytes, i, training_ ? BackwardTime(i) : i);
      ids[i].forward_scratch = Add(plan.scratch_bytes, i, i);
      if (training_) {
        ids[i].backward_scratch =
            Add(plan.scratch_bytes, BackwardTime(i), BackwardTime(i));
      }
    }
    if (training_) PlanGradients(ids);
    arena_.Place();
    return Result(ids);
  }

 private:
  // The numbers of an operation's buffers in the arena.
  struct BufferIds {
    int saved = kNone, forward_scratch = kNone, backward_scratch = kNone;
    int dx = kNone, dsecond = kNone;
    bool add_dx = false, add_dsecond = false;
  };

  int BackwardTime(int i) const { return 2 * count_ - i; }

  int Add(int64_t bytes, int first, int last) {
    return share_ ? arena_.Add(bytes, first, last)
                  : arena_.Add(bytes, 0, 2 * count_);
  }

  int64_t BytesOf(int value) const {
    return batch_bytes_ * operations_[value - 1].output.size();
  }

  void PlanValues() {
    for (int i = 0; i < count_; ++i) {
      values_[i + 1] = Add(BytesOf(i + 1), i, i);
      if (training_ && plans_[i]->backward_reads_y) {
        arena_.Extend(values_[i + 1], i, BackwardTime(i));
      }
      for (const int input : operations_[i].inputs) {
        if (input == 0) continue;
        const bool again = training_ && plans_[i]->backward_reads_x;
        arena_.Extend(values_[input], i, again ? BackwardTime(i) : i);
      }
    }
    arena_.Extend(values_[count_], count_, count_);  // The loss reads it.
  }

  // In the backward pass the last consumer of a value writes its gradient
  // first; the other consumers add to it.
  void PlanGradients(std::vector<BufferIds>& ids) {
    gradients_[count_] = Add(BytesOf(count_), count_, count_);
    for (int i = count_ - 1; i >= 0; --i) {
      const OperationPlan& plan = *plans_[i];
      const std::vector<int>& inputs = operations_[i].inputs;
      const int dy = gradients_[i + 1];
      arena_.Extend(dy, BackwardTime(i), BackwardTime(i));
      if (inputs.size() > 1) {
        ids[i].dsecond = PlanGradient(
            inputs[1], i, dy, plan.dsecond_may_share_dy, ids[i].add_dsecond);
      }
      if (inputs[0] != 0) {
        ids[i].dx =
            PlanGradient(inputs[0], i, dy, plan.dx_may_share_dy, ids[i].add_dx);
      }
    }
  }

  // Returns the buffer where operation i writes the gradient of `value`.
  // in_place: the gradient may use dy's buffer.
  int PlanGradient(int value, int i, int dy, bool in_place, bool& add) {
    int& gradient = gradients_[value];
    add = gradient != kNone;
    if (add) {
      arena_.Extend(gradient, BackwardTime(i), BackwardTime(i));
      return in_place ? dy
                      : Add(BytesOf(value), BackwardTime(i), BackwardTime(i));
    }
    gradient =
        in_place ? dy : Add(BytesOf(value), BackwardTime(i), BackwardTime(i));
    return gradient;
  }

  int64_t OffsetOf(int id) const {
    return id == kNone ? StepMemory::kNowhere : arena_.offset(id);
  }

  StepMemory Result(const std::vector<BufferIds>& ids) const {
    StepMemory memory;
    for (const BufferIds& of : ids) {
      memory.operations.push_back(
          {.saved = OffsetOf(of.saved),
           .forward_scratch = OffsetOf(of.forward_scratch),
           .backward_scratch = OffsetOf(of.backward_scratch),
           .dx = OffsetOf(of.dx),
           .dsecond = OffsetOf(of.dsecond),
           .add_dx = of.add_dx,
           .add_dsecond = of.add_dsecond});
    }
    for (const int id : values_) memory.values.push_back(OffsetOf(id));
    for (const int id : gradients_) memory.gradients.push_back(OffsetOf(id));
    memory.bytes = arena_.size();
    return memory;
  }

  const std::vector<Network::Operation>& operations_;
  const std::vector<std::unique_ptr<OperationPlan>>& plans_;
  const int64_t batch_bytes_;
  const bool training_;
  const bool share_;
  const int count_;
  Arena arena_;
  std::vector<int> values_, gradients_;
};

}  // namespace

int Arena::Add(int64_t bytes, int first, int last) {
  buffers_.push_back({AlignedBytes(bytes), first, last});
  return static_cast<int>(buffers_.size()) - 1;
}

void Arena::Extend(int id, int first, int last) {
  buffers_[id].first = std::min(buffers_[id].first, first);
  buffers_[id].last = std::max(buffers_[id].last, last);
}

// placed: sorted by offset.
int64_t Arena::LowestFreeOffset(
    const Buffer& buffer, const std::vector<const Buffer*>& placed) const {
  int64_t at = 0;
  for (const Buffer* other : placed) {
    if (other->first > buffer.last || other->last < buffer.first) continue;
    if (at + buffer.bytes <= other->offset) break;
    at = std::max(at, other->offset + other->bytes);
  }
  return at;
}

void Arena::Place() {
  std::vector<Buffer*> by_size;
  for (Buffer& buffer : buffers_) {
    if (buffer.bytes > 0) by_size.push_back(&buffer);
  }
  std::ranges::stable_sort(by_size, [](const Buffer* a, const Buffer* b) {
    return a->bytes > b->bytes;
  });
  std::vector<const Buffer*> placed;
  for (Buffer* buffer : by_size) {
    buffer->offset = LowestFreeOffset(*buffer, placed);
    size_ = std::max(size_, buffer->offset + buffer->bytes);
    placed.insert(
        std::ranges::upper_bound(placed, buffer->offset, {},
                                 [](const Buffer* b) { return b->offset; }),
        buffer);
  }
}

StepMemory PlanMemory(const Network& network,
                      const std::vector<std::unique_ptr<OperationPlan>>& plans,
                      const MemoryOptions& options) {
  return Planner(network, plans, options).Run();
}

}  // namespace lockstep
