// Reductions of gathered inputs.
#include "collectives/algorithms/gather_reduce.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/algorithms/pairwise.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/algorithms/ring.h"
#include "collectives/algorithms/transport.h"
#include "collectives/buffer.h"
#include "collectives/reduce_op.h"

namespace lockstep {
namespace {

// Room for every rank's input.
class Inputs {
 public:
  Inputs(const ConstBuffer& input, int world_size)
      : world_size_(world_size),
        bytes_(std::make_unique_for_overwrite<std::byte[]>(
            static_cast<size_t>(input.size_bytes() * world_size))),
        all_(bytes_.get(), input.count * world_size, input.type) {}

  const Buffer& all() const { return all_; }

  void Fold(ReduceOp op, Buffer output) const {
    std::vector<const void*> inputs;
    for (int rank = 0; rank < world_size_; ++rank) {
      inputs.push_back(all_.Part(rank * output.count, output.count).data);
    }
    void* const outputs[] = {output.data};
    Reduction(output.type, op, world_size_)
        .FoldTree(inputs, outputs, output.count);
  }

 private:
  int world_size_;
  std::unique_ptr<std::byte[]> bytes_;
  Buffer all_;
};

}  // namespace

absl::Status GatherAllReduce(Transport& transport, ConstBuffer input,
                             Buffer output, ReduceOp op) {
  const Inputs inputs(input, transport.world_size());
  LOCKSTEP_RETURN_IF_ERROR(RingAllGather(transport, input, inputs.all(), {}));
  inputs.Fold(op, output);
  return absl::OkStatus();
}

absl::Status GatherReduce(Transport& transport, ConstBuffer input,
                          Buffer output, ReduceOp op, int root) {
  if (transport.rank() != root) {
    return PairwiseGather(transport, input, {}, root);
  }
  const Inputs inputs(input, transport.world_size());
  LOCKSTEP_RETURN_IF_ERROR(
      PairwiseGather(transport, input, inputs.all(), root));
  inputs.Fold(op, output);
  return absl::OkStatus();
}

}  // namespace lockstep
