// Inputs of ranks for a call whose exact result is known for every element.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_EXACT_PATTERN_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_EXACT_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep::benchmarks {

// One rank's input in each iteration, and the result that every rank must get.
//
// A reduction combines one message of each rank into one message. A collective
// that only moves data moves pieces of such a result.
//
// Element i has a phase g in [0, M), which is pseudo-random in i and has no
// period. From one iteration to the next, all phases move by a fixed step. A
// rank's input is a function of the rank and g, and the result is a function of
// g alone, so both are table look-ups. Swapped, shifted and lost pieces are
// therefore detected. A result left from one or two iterations ago is wrong in
// every element.
//
// All inputs are small integers. In any order of reduction, the intermediate
// results are exact in every type, bfloat16 included, even if each step rounds.
// Only the quotient of an average is rounded. uint8 sums of many ranks wrap.
//
// Not thread safe.
class ExactPattern {
 public:
  // Creates the pattern of one rank. Errors: kInvalidArgument for a world size
  // outside [1, kMaxWorldSize] or a rank outside [0, world_size).
  static absl::StatusOr<ExactPattern> Create(DataType type, ReduceOp op,
                                             int rank, int world_size);

  // Overwrites `data` with this rank's input of a reduction in iteration
  // `iteration` >= 0. `data` has this type and any alignment.
  void Fill(int64_t iteration, Buffer data);
  // Overwrites `data` with the elements of the result from `begin` on.
  void FillResult(int64_t iteration, Buffer data, int64_t begin);

  // Returns the number of elements of `data` that differ in any bit from the
  // result of that iteration's inputs, from element `begin` on.
  int64_t CountWrong(int64_t iteration, ConstBuffer data, int64_t begin = 0);

 private:
  ExactPattern(DataType type, ReduceOp op, int rank, int world_size);

  // Fills `tile_` with the table's values for all phases, or at least for the
  // phases of a message's first `end` elements.
  void Expand(const std::vector<uint64_t>& table, int64_t iteration,
              int64_t end);
  void Write(const std::vector<uint64_t>& table, int64_t iteration, Buffer data,
             int64_t begin);
  bool FindStep();

  DataType type_;
  int64_t step_ = 0;  // The number of phases that an iteration moves by.
  std::vector<uint64_t> inputs_;   // The bits of this rank's input, by phase.
  std::vector<uint64_t> results_;  // The bits of the result, by phase.
  std::vector<uint16_t> phases_;
  std::vector<std::byte> tile_;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_EXACT_PATTERN_H_
