// One rank of whatever all-reduce is measured.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_SUBJECT_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_SUBJECT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/buffer.h"
#include "collectives/reduce_op.h"

namespace lockstep {

// One rank's side of a library that reduces. Calls are collective: all ranks
// make the same ones in the same order. Not thread safe.
class AllReduceSubject {
 public:
  virtual ~AllReduceSubject() = default;

  // As the library itself says.
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // output = input reduced over all ranks; in place where they are the same
  // memory. Errors: kUnimplemented for types and operations that the library
  // does not have; the library's own.
  virtual absl::Status AllReduce(ConstBuffer input, Buffer output,
                                 ReduceOp op) = 0;

  virtual absl::Status Barrier() = 0;

  // Memory that the group allocates, `bytes` for this rank. It lasts until the
  // next call of this, or the end. Error: kUnimplemented where there is no such
  // thing.
  virtual absl::StatusOr<std::span<std::byte>> GroupMemory(int64_t bytes) = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_SUBJECT_H_
