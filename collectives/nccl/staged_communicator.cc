#include "collectives/nccl/staged_communicator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {
namespace {

constexpr int64_t kAlignment = 256;

// Returns the offset of a call's output in the staging memory: after the input,
// or 0 if the host's output begins where the input does. If they overlap in
// another way on the host, they are apart here, which gives the same result.
int64_t OutputOffset(const Collective& call) {
  if (call.input.data == call.output.data) return 0;
  return (call.input.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

// Return whether the rank provides no input, or receives no output.
bool HasNoInput(const Collective& call, int rank) {
  return call.input.count == 0 ||
         (rank != call.peer && (call.operation == Operation::kScatter ||
                                call.operation == Operation::kBroadcast));
}
bool HasNoOutput(const Collective& call, int rank) {
  return call.output.count == 0 ||
         (rank != call.peer && (call.operation == Operation::kReduce ||
                                call.operation == Operation::kGather));
}

absl::Status Copy(void* to, const void* from, int64_t bytes,
                  cudaMemcpyKind kind, cudaStream_t stream) {
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream),
      "cudaMemcpyAsync");
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagedCommunicator>> StagedCommunicator::Create(
    std::unique_ptr<Communicator> device_group, cudaStream_t stream) {
  int device = 0;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  return std::unique_ptr<StagedCommunicator>(
      new StagedCommunicator(std::move(device_group), device, stream));
}

absl::StatusOr<Collective> StagedCommunicator::Stage(const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(Validate(call, rank(), world_size()));
  // The calling thread may differ from the last call's.
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), "cudaSetDevice"));
  const int64_t output = OutputOffset(call);
  const int64_t size =
      std::max(call.input.size_bytes(), output + call.output.size_bytes());
  if (size > capacity_) {
    memory_ = nullptr;
    capacity_ = 0;
    LOCKSTEP_ASSIGN_OR_RETURN(memory_, AllocateDeviceMemory(size));
    capacity_ = size;
  }
  Collective staged = call;
  if (call.input.count > 0) staged.input.data = memory_.get();
  if (call.output.count > 0) staged.output.data = memory_.get() + output;
  if (!HasNoInput(call, rank())) {
    LOCKSTEP_RETURN_IF_ERROR(Copy(memory_.get(), call.input.data,
                                  call.input.size_bytes(),
                                  cudaMemcpyHostToDevice, stream_));
  }
  return staged;
}

absl::Status StagedCommunicator::Run(const Collective& call) {
  const absl::StatusOr<Collective> staged = Stage(call);
  if (!staged.ok()) {
    return group_->Run(
        Collective::Refused(call.operation, staged.status(), call.site));
  }
  LOCKSTEP_RETURN_IF_ERROR(group_->Run(*staged));
  LOCKSTEP_RETURN_IF_ERROR(group_->Wait());
  if (HasNoOutput(call, rank())) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(Copy(call.output.data, staged->output.data,
                                call.output.size_bytes(),
                                cudaMemcpyDeviceToHost, stream_));
  return CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

absl::StatusOr<std::shared_ptr<std::byte>> StagedCommunicator::AllocatePinned(
    int64_t bytes) const {
  if (bytes < 0) return absl::InvalidArgumentError("the size is negative");
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), "cudaSetDevice"));
  LOCKSTEP_ASSIGN_OR_RETURN(PinnedMemory memory, AllocatePinnedMemory(bytes));
  std::memset(memory.get(), 0, static_cast<size_t>(bytes));
  return std::shared_ptr<std::byte>(std::move(memory));
}

absl::StatusOr<GroupBuffer> StagedCommunicator::Allocate(int64_t bytes,
                                                         CallSite site) {
  // Allocates before the ranks agree, so that no rank waits for one without
  // memory.
  absl::StatusOr<std::shared_ptr<std::byte>> memory = AllocatePinned(bytes);
  Collective call;
  call.operation = Operation::kAllocate;
  call.counts = {&bytes, 1};  // The size, which must match on all ranks.
  call.site = site;
  call.refusal = memory.status();
  LOCKSTEP_RETURN_IF_ERROR(group_->Run(call));
  LOCKSTEP_RETURN_IF_ERROR(group_->Wait());
  std::byte* const begin = memory->get();
  return GroupBuffer(*std::move(memory), {begin, static_cast<size_t>(bytes)});
}

absl::StatusOr<std::unique_ptr<Communicator>> StagedCommunicator::Split(
    int color, int key, CallSite site) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part,
                            group_->Split(color, key, site));
  if (part == nullptr) return part;
  return std::unique_ptr<Communicator>(
      new StagedCommunicator(std::move(part), device_, stream_));
}

}  // namespace lockstep
