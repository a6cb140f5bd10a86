// Our own all-reduce, to be measured.
#ifndef LOCKSTEP_BENCHMARKS_COMMUNICATOR_SUBJECT_H_
#define LOCKSTEP_BENCHMARKS_COMMUNICATOR_SUBJECT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce_subject.h"
#include "collectives/buffer.h"
#include "collectives/communicator.h"
#include "collectives/group_buffer.h"
#include "collectives/reduce_op.h"

namespace lockstep {

// One rank of a group of any backend. The communicator is borrowed.
class CommunicatorSubject : public AllReduceSubject {
 public:
  explicit CommunicatorSubject(Communicator& communicator)
      : communicator_(communicator) {}

  int rank() const override { return communicator_.rank(); }
  int world_size() const override { return communicator_.world_size(); }

  absl::Status AllReduce(ConstBuffer input, Buffer output,
                         ReduceOp op) override {
    return communicator_.AllReduce(input, output, op);
  }

  absl::Status Barrier() override { return communicator_.Barrier(); }

  absl::StatusOr<std::span<std::byte>> GroupMemory(int64_t bytes) override {
    memory_ = GroupBuffer();  // Gives back what there was before.
    LOCKSTEP_ASSIGN_OR_RETURN(memory_, communicator_.Allocate(bytes));
    return memory_.bytes();
  }

 private:
  Communicator& communicator_;
  GroupBuffer memory_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_COMMUNICATOR_SUBJECT_H_
