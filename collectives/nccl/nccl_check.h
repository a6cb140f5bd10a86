// Checks of calls in the memory of a GPU, for tests of both builds.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_CHECK_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_CHECK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// Memory of the current device that holds `content`, `offset` bytes past a
// multiple of 256, with room around it. Errors: CudaStatus of what the runtime
// says, here and of Read.
absl::StatusOr<std::unique_ptr<CheckedMemory>> MakeDeviceMemory(
    const Bytes& content, int64_t offset = 0);

// RunAndCheck in such memory; reductions add in the order of the ring. Those of
// floating-point numbers by NCCL, whose order is another, need
// CallInput::kExact.
absl::Status CheckOnDevice(Communicator& communicator,
                           const std::vector<CheckedCall>& calls,
                           int64_t offset = 0);

// An AllReduce and a Reduce of one element less than `count` for each rank, so
// that the ring's segments differ in size, and a ReduceScatter of `count`.
absl::Status CheckRingBits(Communicator& communicator, DataType type,
                           ReduceOp op, int64_t count);

// kDataLoss unless device memory is all zeros.
absl::Status CheckZeros(const ConstBuffer& memory);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_CHECK_H_
