#include "collectives/nccl/run_nccl_ranks.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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
#include "gtest/gtest.h"
#include "tools/cuda/gpu_test.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "standin/control.h"
#endif

namespace lockstep {
namespace {

#ifdef LOCKSTEP_CUDA_STANDIN
constexpr Backend kBackend = Backend::kThreads;
// The number of devices of the stand-in: the most ranks that a test has.
constexpr int kStandinDevices = 8;
constexpr int64_t kStandinChunk = 64 << 10;
#else
constexpr Backend kBackend = Backend::kProcesses;
#endif

// Selects each rank's device by its number.
constexpr int kByRank = -1;

using CollectFunction =
    std::function<absl::StatusOr<std::string>(NcclCommunicator&)>;

absl::StatusOr<std::string> RunRank(Communicator& control, NcclOptions options,
                                    const CollectFunction& fn) {
  if (options.device == kByRank) {
    LOCKSTEP_ASSIGN_OR_RETURN(options.device, DeviceOfRank(control.rank()));
  }
#ifdef LOCKSTEP_CUDA_STANDIN
  // The stand-in writes device memory when it is allocated, so chunks are
  // small.
  options.chunk_bytes = std::min(options.chunk_bytes, kStandinChunk);
#endif
  // Splits off a group, since Create takes ownership of it.
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> owned,
                            control.Split(0, 0));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<NcclCommunicator> communicator,
      NcclCommunicator::Create(std::move(owned), options));
  return fn(*communicator);
}

constexpr int64_t kRoom = 256;  // Keeps the alignment of the memory after it.

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

  // One of these must be called first. PutInto uses a group's memory, and
  // allocates it if it is too small; every rank must call it.
  absl::Status Allocate() {
    LOCKSTEP_ASSIGN_OR_RETURN(memory_, AllocateDeviceMemory(size()));
    return Write();
  }
  absl::Status PutInto(GroupBuffer& buffer, Communicator& group) {
    if (std::ssize(buffer.bytes()) < size()) {
      LOCKSTEP_ASSIGN_OR_RETURN(buffer, group.Allocate(size()));
    }
    memory_ = {buffer.bytes().data(), [](std::byte*) {}};
    return Write();
  }

  std::byte* data() override { return memory_.get() + begin(); }

 private:
  absl::StatusOr<Bytes> Image() const override {
    return CopyToHost(memory_.get(), image_.size());
  }

  int64_t size() const { return std::ssize(image_); }
  absl::Status Write() {
    return CudaStatus(cudaMemcpy(memory_.get(), image_.data(), image_.size(),
                                 cudaMemcpyHostToDevice),
                      "cudaMemcpy");
  }

  const Bytes image_;  // The initial content.
  std::shared_ptr<std::byte> memory_;
};

}  // namespace

namespace {

std::vector<absl::StatusOr<std::string>> Collect(
    const std::vector<NcclOptions>& options, const CollectFunction& fn,
    absl::Duration control_timeout) {
#ifdef LOCKSTEP_CUDA_STANDIN
  standin::Devices devices = standin::CurrentDevices();
  devices.count = kStandinDevices;
  standin::SetDevices(devices);
#endif
  RunRanksOptions run;
  run.group.timeout = control_timeout;
  return RunRanksCollect(
      kBackend, static_cast<int>(options.size()),
      [&](Communicator& control) {
        return RunRank(control, options[static_cast<size_t>(control.rank())],
                       fn);
      },
      run);
}

std::vector<NcclOptions> ByRank(int world_size, NcclOptions options) {
  options.device = kByRank;
  return std::vector<NcclOptions>(static_cast<size_t>(world_size), options);
}

bool OneRankForEachGpu() {
  const char* const gpus = std::getenv("LOCKSTEP_GPUS");
  return gpus != nullptr && std::string_view(gpus) == "all";
}

// Returns the number of GPUs, or why they cannot be counted.
absl::StatusOr<int> CountGpus() {
  static const auto& counted = *new absl::StatusOr<std::string>(
      RunRanksCollect(Backend::kProcesses, 1,
                      [](Communicator&) -> absl::StatusOr<std::string> {
                        int gpus = 0;
                        LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
                            cudaGetDeviceCount(&gpus), "cudaGetDeviceCount"));
                        return std::string(static_cast<size_t>(gpus), '.');
                      })
          .front());
  LOCKSTEP_RETURN_IF_ERROR(counted.status());
  return static_cast<int>(counted->size());
}

void SkipOrFail(const std::string& why, int needed) {
  if (GpusRequired(needed)) FAIL() << "LOCKSTEP_REQUIRE_GPU, but " << why;
  GTEST_SKIP() << why;
}

}  // namespace

std::vector<absl::Status> RunNcclRanks(const std::vector<NcclOptions>& options,
                                       const NcclRankFunction& fn,
                                       absl::Duration control_timeout) {
  std::vector<absl::Status> statuses;
  for (const auto& result : Collect(
           options,
           [&](NcclCommunicator& communicator) -> absl::StatusOr<std::string> {
             LOCKSTEP_RETURN_IF_ERROR(fn(communicator));
             return std::string();
           },
           control_timeout)) {
    statuses.push_back(result.status());
  }
  return statuses;
}

std::vector<absl::Status> RunNcclRanks(int world_size,
                                       const NcclOptions& options,
                                       const NcclRankFunction& fn,
                                       absl::Duration control_timeout) {
  return RunNcclRanks(ByRank(world_size, options), fn, control_timeout);
}

std::vector<absl::StatusOr<std::string>> RunNcclRanksCollect(
    int world_size, const NcclOptions& options, const CollectFunction& fn,
    absl::Duration control_timeout) {
  return Collect(ByRank(world_size, options), fn, control_timeout);
}

std::vector<int> NcclWorldSizes(const std::vector<int>& on_standin) {
  if (kOnStandin) return on_standin;
  if (!OneRankForEachGpu()) return {1, 2, 3};
  return {std::max(CountGpus().value_or(0), 2)};
}

bool HasNcclRanks() {
  if (kOnStandin) return true;
  const absl::StatusOr<int> gpus = CountGpus();
  if (!gpus.ok()) {
    SkipOrFail(absl::StrCat("no GPU: ", gpus.status().message()), 1);
  } else if (*gpus == 0) {
    SkipOrFail("no GPU: no devices", 1);
  } else if (*gpus == 1 && OneRankForEachGpu()) {
    SkipOrFail("1 GPU, and the test needs 2", 2);
  } else {
    return true;
  }
  return false;
}

absl::Status CheckIsDirect(const NcclCommunicator& communicator) {
  if (communicator.is_direct()) return absl::OkStatus();
  return absl::UnimplementedError(
      "kDirect is not reached: the ranks cannot access each other's memory");
}

bool SkippedAsNotReached(const absl::Status& of_a_rank) {
  if (!absl::IsUnimplemented(of_a_rank)) return false;
  [&] { GTEST_SKIP() << of_a_rank.message(); }();
  return true;
}

std::string NcclBackendName(int world_size) {
  if (kOnStandin) return "nccl stand-in";
  return world_size > CountGpus().value_or(0) ? "nccl, shared_gpu" : "nccl";
}

absl::StatusOr<std::unique_ptr<CheckedMemory>> MakeDeviceMemory(
    const Bytes& content, int64_t offset) {
  auto memory = std::make_unique<GuardedDeviceMemory>(content, offset);
  LOCKSTEP_RETURN_IF_ERROR(memory->Allocate());
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
  // The memory of a call's input and output serves the next calls too, since
  // each allocation is a call of all ranks.
  GroupBuffer buffers[2];
  return RunAndCheck(
      communicator, calls, AdditionOrder::kRing,
      [&](const Bytes& content)
          -> absl::StatusOr<std::unique_ptr<CheckedMemory>> {
        auto memory = std::make_unique<GuardedDeviceMemory>(content, offset);
        std::swap(buffers[0], buffers[1]);
        LOCKSTEP_RETURN_IF_ERROR(memory->PutInto(buffers[0], communicator));
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
