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
constexpr int64_t kStandinChunk = 64 << 10;
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
#ifdef LOCKSTEP_CUDA_STANDIN
  // Its memory is written when it is allocated.
  options.chunk_bytes = std::min(options.chunk_bytes, kStandinChunk);
#endif
  // A group of its own, since Create takes it over.
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> owned,
                            control.Split(0, 0));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<NcclCommunicator> communicator,
      NcclCommunicator::Create(std::move(owned), options));
  return fn(*communicator);
}

constexpr int64_t kRoom = 256;  // Keeps the alignment of what it is before.

absl::StatusOr<Bytes> CopyToHost(const void* memory, size_t size) {
  Bytes bytes(size);
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpy(bytes.data(), memory, size, cudaMemcpyDeviceToHost),
                 "cudaMemcpy"));
  return bytes;
}

class GuardedDeviceMemory : public CheckedMemory {
 public:
  GuardedDeviceMemory(const Bytes& content, int64_t offset)
      : CheckedMemory(content.size()),
        image_(Guarded(content, static_cast<size_t>(kRoom + offset), kRoom)) {}

  // Comes before all else. group: whose memory it is; null for the device's.
  absl::Status Allocate(Communicator* group) {
    const auto bytes = static_cast<int64_t>(image_.size());
    if (group == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(memory_, AllocateDeviceMemory(bytes));
    } else {
      LOCKSTEP_ASSIGN_OR_RETURN(buffer_, group->Allocate(bytes));
      memory_ = {buffer_.bytes().data(), [](std::byte*) {}};
    }
    return CudaStatus(cudaMemcpy(memory_.get(), image_.data(), image_.size(),
                                 cudaMemcpyHostToDevice),
                      "cudaMemcpy");
  }

  std::byte* data() override { return memory_.get() + begin(); }

 private:
  absl::StatusOr<Bytes> Image() const override {
    return CopyToHost(memory_.get(), image_.size());
  }

  const Bytes image_;  // At first.
  GroupBuffer buffer_;
  std::shared_ptr<std::byte> memory_;
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
  auto memory = std::make_unique<GuardedDeviceMemory>(content, offset);
  LOCKSTEP_RETURN_IF_ERROR(memory->Allocate(nullptr));
  return memory;
}

absl::Status CheckOnDevice(Communicator& communicator,
                           const std::vector<CheckedCall>& calls,
                           int64_t offset) {
  return RunAndCheck(communicator, calls, AdditionOrder::kRing,
                     [offset](const Bytes& content) {
                       return MakeDeviceMemory(content, offset);
                     });
}

absl::Status CheckInGroupMemory(Communicator& communicator,
                                const std::vector<CheckedCall>& calls,
                                int64_t offset) {
  return RunAndCheck(
      communicator, calls, AdditionOrder::kRing,
      [&](const Bytes& content)
          -> absl::StatusOr<std::unique_ptr<CheckedMemory>> {
        auto memory = std::make_unique<GuardedDeviceMemory>(content, offset);
        LOCKSTEP_RETURN_IF_ERROR(memory->Allocate(&communicator));
        return memory;
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
  LOCKSTEP_ASSIGN_OR_RETURN(
      const Bytes bytes,
      CopyToHost(memory.data, static_cast<size_t>(memory.size_bytes())));
  if (bytes == Bytes(bytes.size())) return absl::OkStatus();
  return absl::DataLossError("memory is not zero");
}

}  // namespace lockstep
