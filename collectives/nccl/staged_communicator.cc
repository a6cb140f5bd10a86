#include "collectives/nccl/staged_communicator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
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

// Where a call's buffers lie in the staging memory.
struct Places {
  int64_t input = 0;
  int64_t output = 0;
  int64_t size = 0;
};

// In place, as they lie to each other on the host.
Places PlacesOf(const Collective& call) {
  const std::byte* const in = call.input.bytes();
  const std::byte* const out = call.output.bytes();
  const int64_t in_size = call.input.size_bytes();
  const int64_t out_size = call.output.size_bytes();
  const std::less<> before;
  const bool overlap = in_size > 0 && out_size > 0 &&
                       before(in, out + out_size) && before(out, in + in_size);
  Places places;
  if (overlap) {
    const std::byte* const first = std::min(in, out, before);
    places.input = in - first;
    places.output = out - first;
  } else {
    places.output = (in_size + kAlignment - 1) / kAlignment * kAlignment;
  }
  places.size = std::max(places.input + in_size, places.output + out_size);
  return places;
}

// Whether the rank gives no input, or gets no output.
bool GivesNothing(const Collective& call, int rank) {
  return call.input.count == 0 ||
         (rank != call.peer && (call.operation == Operation::kScatter ||
                                call.operation == Operation::kBroadcast));
}
bool GetsNothing(const Collective& call, int rank) {
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
  // The calling thread may be another than the last call's.
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), "cudaSetDevice"));
  const Places places = PlacesOf(call);
  if (places.size > capacity_) {
    memory_ = nullptr;
    capacity_ = 0;
    LOCKSTEP_ASSIGN_OR_RETURN(memory_, AllocateDeviceMemory(places.size));
    capacity_ = places.size;
  }
  Collective staged = call;
  if (call.input.count > 0) staged.input.data = memory_.get() + places.input;
  if (call.output.count > 0) staged.output.data = memory_.get() + places.output;
  if (!GivesNothing(call, rank())) {
    LOCKSTEP_RETURN_IF_ERROR(Copy(memory_.get() + places.input, call.input.data,
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
  if (GetsNothing(call, rank())) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(Copy(call.output.data, staged->output.data,
                                call.output.size_bytes(),
                                cudaMemcpyDeviceToHost, stream_));
  return CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

absl::StatusOr<GroupBuffer> StagedCommunicator::Allocate(int64_t bytes,
                                                         CallSite site) {
  LOCKSTEP_RETURN_IF_ERROR(group_->Barrier(site));
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), "cudaSetDevice"));
  void* memory = nullptr;
  const auto size = static_cast<size_t>(bytes);
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMallocHost(&memory, std::max<size_t>(size, 1)), "cudaMallocHost"));
  std::memset(memory, 0, size);
  return GroupBuffer(
      std::shared_ptr<void>(memory, [](void* pinned) { cudaFreeHost(pinned); }),
      {static_cast<std::byte*>(memory), size});
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
