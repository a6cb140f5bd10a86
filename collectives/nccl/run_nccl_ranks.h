// Runs a function on every rank of a new NCCL group, and checks collectives on
// device memory there: for tests with and without GPUs.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_RUN_NCCL_RANKS_H_
#define LOCKSTEP_COLLECTIVES_NCCL_RUN_NCCL_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"

namespace lockstep {

// The function that each rank runs. The options do not choose the device: on
// the stand-in, ranks are threads with a device each; on GPUs they are
// processes, distributed over the available devices.
using NcclRankFunction = std::function<absl::Status(NcclCommunicator&)>;

// Returns what `fn` returned on each rank, in rank order, or why the rank could
// not join: kNotFound if there is no GPU. control_timeout: the timeout of the
// control group on the host.
std::vector<absl::Status> RunNcclRanks(
    int world_size, const NcclOptions& options, const NcclRankFunction& fn,
    absl::Duration control_timeout = absl::Seconds(20));

// The same with each rank's own options, which choose the device too.
std::vector<absl::Status> RunNcclRanks(
    const std::vector<NcclOptions>& options, const NcclRankFunction& fn,
    absl::Duration control_timeout = absl::Seconds(20));

// The same, and returns each rank's bytes to the caller. Ranks may be
// processes, whose writes to memory the caller cannot see.
std::vector<absl::StatusOr<std::string>> RunNcclRanksCollect(
    int world_size, const NcclOptions& options,
    const std::function<absl::StatusOr<std::string>(NcclCommunicator&)>& fn,
    absl::Duration control_timeout = absl::Seconds(20));

// Whether this build uses the stand-in, which needs no GPU.
#ifdef LOCKSTEP_CUDA_STANDIN
inline constexpr bool kOnStandin = true;
#else
inline constexpr bool kOnStandin = false;
#endif

// Returns the world sizes for a suite's tests. On the stand-in: on_standin. On
// GPUs: 1, 2 and 3, since ranks that share a GPU are slow; with
// LOCKSTEP_GPUS=all in the environment, as many as there are GPUs, and at least
// 2.
std::vector<int> NcclWorldSizes(const std::vector<int>& on_standin);

// Returns whether the current test may run. If not, the test is skipped, or
// fails if GpusRequired() (tools/cuda/gpu_test.h). A test may not run if there
// is no GPU, or if there is one GPU and the test needs one per rank. CUDA is
// queried in a process of its own, since a process that has used CUDA cannot
// fork ranks that use it.
bool HasNcclRanks();

// Returns kUnimplemented if the ranks of a kDirect group cannot access each
// other's memory. Reductions then take the ring, as on ranks that share a GPU,
// and a test shows nothing of kDirect.
absl::Status CheckIsDirect(const NcclCommunicator& communicator);

// Returns whether `of_a_rank` is CheckIsDirect's error. If so, the current test
// is skipped with its message.
bool SkippedAsNotReached(const absl::Status& of_a_rank);

// Returns the backend's name in a claim's record: "nccl stand-in", "nccl", or
// "nccl, shared_gpu" if there are more ranks than GPUs.
std::string NcclBackendName(int world_size);

// Returns memory of the current device that holds `content`, `offset` bytes
// past a multiple of 256, with guard bytes around it. Errors, here and in Read:
// CudaStatus of the runtime's error.
absl::StatusOr<std::unique_ptr<CheckedMemory>> MakeDeviceMemory(
    const Bytes& content, int64_t offset = 0);

// Runs RunAndCheck in such memory; reductions add in the ring's order.
// Floating-point reductions by NCCL, whose order differs, need
// CallInput::kExact.
absl::Status CheckOnDevice(Communicator& communicator,
                           const std::vector<CheckedCall>& calls,
                           int64_t offset = 0);

// The same in memory that the communicator allocates. Only for AllReduce,
// ReduceScatter and AllGather, which have an output on every rank.
absl::Status CheckInGroupMemory(Communicator& communicator,
                                const std::vector<CheckedCall>& calls,
                                int64_t offset = 0);

// Checks an AllReduce and a Reduce of one element less than `count` for each
// rank, so that the ring's segments differ in size, and a ReduceScatter of
// `count`.
absl::Status CheckRingBits(Communicator& communicator, DataType type,
                           ReduceOp op, int64_t count);

// Returns kDataLoss unless the device memory is all zeros.
absl::Status CheckZeros(const ConstBuffer& memory);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_RUN_NCCL_RANKS_H_
