// The arithmetic of reductions on the CPU.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep {

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
  DataType type_;
  ReduceOp op_;
  int world_size_;
  DataType accumulator_;
};

// Every output = (earlier op last), finished, for n elements: accumulators op
// elements gives elements. Outputs may be `last`, and at least one; they do not
// overlap `earlier`. Any alignment.
void CompleteReduction(const Reduction& reduction, const void* earlier,
                       const void* last, std::span<void* const> outputs,
                       int64_t n);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_H_
