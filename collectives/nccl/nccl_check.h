// One collective call on a GPU, its answer checked: for tests.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_CHECK_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/cuda_handles.h"

namespace lockstep {

// Device memory with room around it, to see whether that stays untouched.
class DeviceArray {
 public:
  // Begins `offset` bytes past an address that is aligned to 256.
  DeviceArray(int64_t count, DataType type, int64_t offset = 0);

  Buffer buffer() const;
  absl::Status Write(const std::vector<std::byte>& from) const;
  // kDataLoss if what is around the array has changed.
  absl::Status Read(std::vector<std::byte>& to) const;

 private:
  int64_t count_;
  DataType type_;
  int64_t begin_;
  int64_t bytes_;  // With the room.
  absl::Status status_;
  DeviceMemory memory_;
};

struct DeviceCall {
  Operation operation;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int64_t count = 0;  // Of a rank's part.
  int root = 0;
  bool in_place = false;
  bool unequal = false;  // AllGather: rank r has count + r % 3 elements.
  int64_t offset = 0;    // Of the buffers, in bytes.
  bool scales = false;   // Averages of floats may be off by rounding.
};

// "AllReduce float32 sum 7 in place".
std::string ToString(const DeviceCall& call);

// Every rank makes the call, with data that differ by rank and place, and whose
// reductions are exact in every order. kDataLoss if the output or what is
// around it is not as it should be, or the input has changed.
absl::Status Check(Communicator& communicator, const DeviceCall& call);

// An AllReduce, a Reduce and a ReduceScatter of random elements, of `count` a
// rank, against the CPU's reduction in the ring's order, bit for bit. kDataLoss
// if they differ.
absl::Status CheckRingBits(Communicator& communicator, DataType type,
                           ReduceOp op, int64_t count);

// kDataLoss unless device memory is all zeros.
absl::Status CheckZeros(const ConstBuffer& memory);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_CHECK_H_
