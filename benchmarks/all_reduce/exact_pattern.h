// What ranks give in a call whose exact result is known, for every element.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_EXACT_PATTERN_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_EXACT_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep::benchmarks {

// What one rank gives in iteration t, and what every rank must get.
//
// A reduction takes a message of each rank, and gives one message; a collective
// that only moves data moves pieces of such a result.
//
// Element i has a phase g in [0, M), pseudo-random in i and without a period,
// which moves by a fixed step from one iteration to the next. The rank's input
// is a function of its number and of g, the result a function of g alone, so
// both are looked up. That makes swapped, shifted or lost pieces show, and a
// result left from one or two iterations ago is wrong in every element.
//
// All inputs are small integers, and whatever the order of a reduction, its
// intermediate results are exact in every type, bfloat16 included, even if it
// rounds after every step; only the quotient of an average is rounded. uint8
// sums of many ranks wrap.
//
// Not thread safe.
class ExactPattern {
 public:
  // Errors: kInvalidArgument for a world size outside [1, kMaxWorldSize] or a
  // rank outside of it.
  static absl::StatusOr<ExactPattern> Create(DataType type, ReduceOp op,
                                             int rank, int world_size);

  // Overwrites `data`, of this type and of any alignment, with this rank's
  // input of a reduction in iteration `iteration` >= 0; or with the elements of
  // the result from `begin` on.
  void Fill(int64_t iteration, Buffer data);
  void FillResult(int64_t iteration, Buffer data, int64_t begin);

  // The number of elements of `data` that are not, bit for bit, those of the
  // result of that iteration's inputs from `begin` on.
  int64_t CountWrong(int64_t iteration, ConstBuffer data, int64_t begin = 0);

 private:
  ExactPattern(DataType type, ReduceOp op, int rank, int world_size);

  // Values of all phases, or of those of a message's first `end` elements, as
  // bytes in `tile_`.
  void Expand(const std::vector<uint64_t>& table, int64_t iteration,
              int64_t end);
  void Write(const std::vector<uint64_t>& table, int64_t iteration, Buffer data,
             int64_t begin);
  bool FindStep();

  DataType type_;
  int64_t step_ = 0;               // Phases by which an iteration moves.
  std::vector<uint64_t> inputs_;   // By phase, the bits of this rank's input.
  std::vector<uint64_t> results_;  // By phase, the bits of the result.
  std::vector<uint16_t> phases_;
  std::vector<std::byte> tile_;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_EXACT_PATTERN_H_
