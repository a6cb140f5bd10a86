#include "models/cuda/batch_copy.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "models/cuda/step_numbers.h"
#include "models/model.h"
#include "models/program/step_memory.h"

namespace lockstep {
namespace {

// Calls visit(array) for every array of the batch.
template <typename Visit>
void ForArrays(Batch& batch, const Visit& visit) {
  visit(batch.images);
  visit(batch.labels);
  visit(batch.other_labels);
  visit(batch.shares);
  visit(batch.samples);
}

// The numbers of the step begin the memory.
constexpr int64_t kNumbersBytes = AlignedBytes(sizeof(StepNumbers));

}  // namespace

absl::Status BatchCopy::ReserveBytes(int64_t bytes) {
  if (bytes <= capacity_) return absl::OkStatus();
  capacity_ = 0;
  pinned_.reset();
  device_.reset();
  LOCKSTEP_ASSIGN_OR_RETURN(pinned_, AllocatePinnedMemory(bytes));
  LOCKSTEP_ASSIGN_OR_RETURN(device_, AllocateDeviceMemory(bytes));
  capacity_ = bytes;
  return absl::OkStatus();
}

absl::Status BatchCopy::Reserve(int64_t n, const Shape& image) {
  int64_t bytes =
      kNumbersBytes + AlignedBytes(n * image.size() * int64_t{sizeof(float)});
  for (const size_t element :
       {sizeof(int32_t), sizeof(int32_t), sizeof(float), sizeof(int64_t)}) {
    bytes += AlignedBytes(n * static_cast<int64_t>(element));
  }
  return ReserveBytes(bytes);
}

absl::StatusOr<DeviceBatch> BatchCopy::Enqueue(const Batch& batch,
                                               float learning_rate,
                                               cudaStream_t stream) {
  Batch on_device = batch;
  int64_t bytes = kNumbersBytes;
  ForArrays(on_device, [&](auto& array) {
    if (array.empty()) array = {};  // Not a pointer to host memory.
    bytes += AlignedBytes(static_cast<int64_t>(array.size_bytes()));
  });
  LOCKSTEP_RETURN_IF_ERROR(ReserveBytes(bytes));
  const StepNumbers numbers = {
      .seed = batch.seed, .step = batch.step, .learning_rate = learning_rate};
  std::memcpy(pinned_.get(), &numbers, sizeof(numbers));
  int64_t offset = kNumbersBytes;
  ForArrays(on_device, [&]<typename T>(std::span<const T>& array) {
    if (array.empty()) return;
    std::memcpy(pinned_.get() + offset, array.data(), array.size_bytes());
    array = std::span(reinterpret_cast<const T*>(device_.get() + offset),
                      array.size());
    offset += AlignedBytes(static_cast<int64_t>(array.size_bytes()));
  });
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(device_.get(), pinned_.get(), static_cast<size_t>(bytes),
                      cudaMemcpyHostToDevice, stream),
      "cudaMemcpyAsync"));
  return DeviceBatch{on_device,
                     reinterpret_cast<const StepNumbers*>(device_.get())};
}

}  // namespace lockstep
