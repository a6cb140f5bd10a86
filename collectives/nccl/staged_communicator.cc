#include "collectives/nccl/staged_communicator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/pending_collective.h"

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

// Returns whether the device copies to and from the memory without blocking the
// host.
bool IsPinned(const void* memory) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, memory) == cudaSuccess) {
    return attributes.type == cudaMemoryTypeHost;
  }
  cudaGetLastError();  // Older runtimes record an error for ordinary memory.
  return false;
}

}  // namespace

// A staged call. Its output is copied in the order of the stream if it lies in
// pinned memory. A copy to other memory would block the host until the call has
// ended, so Wait makes it.
class StagedCommunicator::InSlot : public PendingCollective::Progress {
 public:
  InSlot(Slot& slot, cudaStream_t stream, const Collective& call,
         const void* output, int64_t output_bytes)
      : slot_(slot),
        stream_(stream),
        call_(call),
        output_(output),
        output_bytes_(output_bytes) {}

  // Enqueues the call on device memory, and the copy of its output.
  void Enqueue(Communicator& group, const Collective& staged) {
    on_device_ = group.Start(staged);
    copies_early_ = output_bytes_ > 0 && IsPinned(call_.output.data);
    if (copies_early_) copied_ = CopyOutput();
    if (copied_.ok()) {
      copied_ = CudaStatus(cudaEventRecord(slot_.done.get(), stream_),
                           "cudaEventRecord");
    }
  }

  bool waited() const { return status_.has_value(); }

  absl::Status Wait() override {
    if (!waited()) status_ = Finish();
    return *status_;
  }
  bool done() override {
    return waited() || (on_device_->done() &&
                        cudaEventQuery(slot_.done.get()) != cudaErrorNotReady);
  }

 private:
  absl::Status CopyOutput() const {
    return Copy(call_.output.data, output_, output_bytes_,
                cudaMemcpyDeviceToHost, stream_);
  }

  absl::Status Finish() const {
    LOCKSTEP_RETURN_IF_ERROR(on_device_->Wait());
    LOCKSTEP_RETURN_IF_ERROR(copied_);
    if (output_bytes_ == 0) return absl::OkStatus();
    if (copies_early_) {
      return CudaStatus(cudaEventSynchronize(slot_.done.get()),
                        "cudaEventSynchronize");
    }
    LOCKSTEP_RETURN_IF_ERROR(CopyOutput());
    return CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  Slot& slot_;
  const cudaStream_t stream_;
  const Collective call_;
  const void* const output_;  // On the device.
  const int64_t output_bytes_;
  bool copies_early_ = false;
  absl::Status copied_;  // Of what Enqueue enqueued after the call.
  std::optional<PendingCollective> on_device_;
  std::optional<absl::Status> status_;
};

absl::StatusOr<std::unique_ptr<StagedCommunicator>> StagedCommunicator::Create(
    std::unique_ptr<Communicator> device_group, cudaStream_t stream) {
  int device = 0;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  return std::unique_ptr<StagedCommunicator>(
      new StagedCommunicator(std::move(device_group), device, stream));
}

StagedCommunicator::~StagedCommunicator() {
  for (Slot& slot : slots_) {
    if (slot.call != nullptr) static_cast<void>(slot.call->Wait());
  }
}

StagedCommunicator::Slot& StagedCommunicator::TakeSlot() {
  Slot* taken = &slots_[0];
  for (Slot& slot : slots_) {
    if (slot.call == nullptr || slot.call->waited()) return slot;
    if (slot.number < taken->number) taken = &slot;
  }
  static_cast<void>(taken->call->Wait());
  return *taken;
}

absl::StatusOr<Collective> StagedCommunicator::Stage(const Collective& call,
                                                     Slot& slot) {
  LOCKSTEP_RETURN_IF_ERROR(Validate(call, rank(), world_size()));
  // The calling thread may differ from the last call's.
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), "cudaSetDevice"));
  if (slot.done == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(slot.done, MakeEvent());
  }
  const int64_t output = OutputOffset(call);
  const int64_t needed =
      std::max(call.input.size_bytes(), output + call.output.size_bytes());
  if (needed > slot.capacity) {
    slot.capacity = 0;
    slot.memory.reset();
    LOCKSTEP_ASSIGN_OR_RETURN(slot.memory, AllocateDeviceMemory(needed));
    slot.capacity = needed;
  }
  Collective staged = call;
  if (call.input.count > 0) staged.input.data = slot.memory.get();
  if (call.output.count > 0) staged.output.data = slot.memory.get() + output;
  if (!HasNoInput(call, rank())) {
    LOCKSTEP_RETURN_IF_ERROR(Copy(slot.memory.get(), call.input.data,
                                  call.input.size_bytes(),
                                  cudaMemcpyHostToDevice, stream_));
  }
  return staged;
}

PendingCollective StagedCommunicator::Start(const Collective& call) {
  Slot& slot = TakeSlot();
  slot.number = ++started_;
  slot.call = nullptr;
  const absl::StatusOr<Collective> staged = Stage(call, slot);
  if (!staged.ok()) {
    return group_->Start(
        Collective::Refused(call.operation, staged.status(), call.site));
  }
  const int64_t output_bytes =
      HasNoOutput(call, rank()) ? 0 : call.output.size_bytes();
  slot.call = std::make_shared<InSlot>(slot, stream_, call, staged->output.data,
                                       output_bytes);
  slot.call->Enqueue(*group_, *staged);
  return PendingCollective(slot.call);
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
