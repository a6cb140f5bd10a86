// Runs a function on every rank of a new NCCL group, and checks collectives
// there on device memory: for tests with and without GPUs.
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

// A rank's, which the options do not say: device. On the stand-in ranks are
// threads, with a device each; on GPUs they are processes, dealt out to the
// devices that there are.
using NcclRankFunction = std::function<absl::Status(NcclCommunicator&)>;

// Returns what `fn` returned on each rank, in rank order, or what kept the rank
// from being one: kNotFound where there is no GPU. control_timeout: of the host
// group beside.
std::vector<absl::Status> RunNcclRanks(
    int world_size, const NcclOptions& options, const NcclRankFunction& fn,
    absl::Duration control_timeout = absl::Seconds(20));

// The same with each rank's own options, device included.
std::vector<absl::Status> RunNcclRanks(
    const std::vector<NcclOptions>& options, const NcclRankFunction& fn,
    absl::Duration control_timeout = absl::Seconds(20));

// The same, and hands each rank's bytes to the caller: what ranks that are
// processes write to memory is lost.
std::vector<absl::StatusOr<std::string>> RunNcclRanksCollect(
    int world_size, const NcclOptions& options,
    const std::function<absl::StatusOr<std::string>(NcclCommunicator&)>& fn,
    absl::Duration control_timeout = absl::Seconds(20));

// Whether this is the build that needs no GPU.
#ifdef LOCKSTEP_CUDA_STANDIN
inline constexpr bool kOnStandin = true;
#else
inline constexpr bool kOnStandin = false;
#endif

// The world sizes of a suite's tests: on the stand-in these; on GPUs 1, 2 and
// 3, since ranks that share one are slow; where the environment says
// LOCKSTEP_GPUS=all, as many as there are GPUs, and 2 at least.
std::vector<int> NcclWorldSizes(const std::vector<int>& on_standin);

// Whether the test that runs may go on. Else it is skipped, or fails where
// GpusRequired() (tools/cuda/gpu_test.h): there is no GPU, or one, and the test
// has a rank for each. CUDA is asked in a process of its own, since one that
// has used it can fork no ranks that do.
bool HasNcclRanks();

// What a claim's record says of such a group: "nccl stand-in", "nccl", or
// "nccl, shared_gpu" where there are more ranks than GPUs.
std::string NcclBackendName(int world_size);

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

// The same in memory that the communicator allocates; of AllReduce,
// ReduceScatter and AllGather alone, which have an output on every rank.
absl::Status CheckInGroupMemory(Communicator& communicator,
                                const std::vector<CheckedCall>& calls,
                                int64_t offset = 0);

// An AllReduce and a Reduce of one element less than `count` for each rank, so
// that the ring's segments differ in size, and a ReduceScatter of `count`.
absl::Status CheckRingBits(Communicator& communicator, DataType type,
                           ReduceOp op, int64_t count);

// kDataLoss unless device memory is all zeros.
absl::Status CheckZeros(const ConstBuffer& memory);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_RUN_NCCL_RANKS_H_
