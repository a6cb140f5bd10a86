#include "collectives/nccl/run_nccl_ranks.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/testing/run_ranks.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "tools/cuda/standin/control.h"
#endif

namespace lockstep {
namespace {

#ifdef LOCKSTEP_CUDA_STANDIN
constexpr Backend kBackend = Backend::kThreads;
// Devices of the stand-in: as many as the largest test has ranks.
constexpr int kStandinDevices = 8;
#else
constexpr Backend kBackend = Backend::kProcesses;
#endif

// Negative: by rank.
constexpr int kByRank = -1;

absl::Status RunRank(Communicator& control, NcclOptions options,
                     const NcclRankFunction& fn) {
  if (options.device == kByRank) {
    LOCKSTEP_ASSIGN_OR_RETURN(options.device, DeviceOfRank(control.rank()));
  }
  // A group of its own, since Create takes it over.
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> owned,
                            control.Split(0, 0));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<NcclCommunicator> communicator,
      NcclCommunicator::Create(std::move(owned), options));
  return fn(*communicator);
}

constexpr int64_t kRoom = 256;  // Keeps the alignment of what it is before.
constexpr std::byte kCanary{0xa5};

absl::StatusOr<Bytes> CopyToHost(const void* memory, int64_t size) {
  Bytes bytes(static_cast<size_t>(size), kCanary);
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(bytes.data(), memory, bytes.size(), cudaMemcpyDeviceToHost),
      "cudaMemcpy"));
  return bytes;
}

class GuardedDeviceMemory : public CheckedMemory {
 public:
  GuardedDeviceMemory(DeviceMemory memory, int64_t begin, int64_t size)
      : memory_(std::move(memory)), begin_(begin), size_(size) {}

  std::byte* data() override { return memory_.get() + begin_; }

  absl::StatusOr<Bytes> Read() const override {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Bytes image, CopyToHost(memory_.get(), begin_ + size_ + kRoom));
    const auto begin = image.begin() + begin_;
    const auto end = begin + size_;
    const auto is_canary = [](std::byte b) { return b == kCanary; };
    if (std::all_of(image.begin(), begin, is_canary) &&
        std::all_of(end, image.end(), is_canary)) {
      return Bytes(begin, end);
    }
    return absl::DataLossError("memory beside a buffer was written");
  }

 private:
  DeviceMemory memory_;
  int64_t begin_;
  int64_t size_;
};

}  // namespace

std::vector<absl::Status> RunNcclRanks(const std::vector<NcclOptions>& options,
                                       const NcclRankFunction& fn,
                                       absl::Duration control_timeout) {
#ifdef LOCKSTEP_CUDA_STANDIN
  standin::SetDeviceCount(kStandinDevices);
#endif
  RunRanksOptions run;
  run.group.timeout = control_timeout;
  // Ranks that share a GPU take tens of milliseconds for a call.
  run.deadline = absl::Minutes(10);
  return RunRanks(
      kBackend, static_cast<int>(options.size()),
      [&](Communicator& control) {
        return RunRank(control, options[static_cast<size_t>(control.rank())],
                       fn);
      },
      run);
}

std::vector<absl::Status> RunNcclRanks(int world_size,
                                       const NcclOptions& options,
                                       const NcclRankFunction& fn,
                                       absl::Duration control_timeout) {
  NcclOptions by_rank = options;
  by_rank.device = kByRank;
  return RunNcclRanks(
      std::vector<NcclOptions>(static_cast<size_t>(world_size), by_rank), fn,
      control_timeout);
}

absl::StatusOr<std::unique_ptr<CheckedMemory>> MakeDeviceMemory(
    const Bytes& content, int64_t offset) {
  const auto size = static_cast<int64_t>(content.size());
  const int64_t begin = kRoom + offset;
  Bytes image(static_cast<size_t>(begin + size + kRoom), kCanary);
  std::copy(content.begin(), content.end(), image.begin() + begin);
  LOCKSTEP_ASSIGN_OR_RETURN(
      DeviceMemory memory,
      AllocateDeviceMemory(static_cast<int64_t>(image.size())));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpy(memory.get(), image.data(), image.size(),
                            cudaMemcpyHostToDevice),
                 "cudaMemcpy"));
  return std::make_unique<GuardedDeviceMemory>(std::move(memory), begin, size);
}

absl::Status CheckOnDevice(Communicator& communicator,
                           const std::vector<CheckedCall>& calls,
                           int64_t offset) {
  return RunAndCheck(communicator, calls, AdditionOrder::kRing,
                     [offset](const Bytes& content) {
                       return MakeDeviceMemory(content, offset);
                     });
}

absl::Status CheckRingBits(Communicator& communicator, DataType type,
                           ReduceOp op, int64_t count) {
  const int world_size = communicator.world_size();
  const int64_t odd = count * world_size - 1;
  return CheckOnDevice(
      communicator,
      {{Operation::kAllReduce, type, op, odd},
       {Operation::kReduce, type, op, odd, /*root=*/world_size - 1},
       {Operation::kReduceScatter, type, op, count}});
}

absl::Status CheckZeros(const ConstBuffer& memory) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Bytes bytes,
                            CopyToHost(memory.data, memory.size_bytes()));
  if (bytes == Bytes(bytes.size())) return absl::OkStatus();
  return absl::DataLossError("memory is not zero");
}

}  // namespace lockstep
