// Copies of batches in a GPU's memory.
#ifndef LOCKSTEP_MODELS_CUDA_BATCH_COPY_H_
#define LOCKSTEP_MODELS_CUDA_BATCH_COPY_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "models/cuda/step_numbers.h"
#include "models/model.h"

namespace lockstep {

// A batch in device memory, and the numbers of its step there.
struct DeviceBatch {
  Batch batch;
  const StepNumbers* numbers = nullptr;
};

// Room for one batch in a GPU's memory, and for the same batch in pinned memory
// on its way there. The current device must be the same in every call. Not
// thread safe.
class BatchCopy {
 public:
  // Makes room for batches of n images of this size, mixed or not.
  absl::Status Reserve(int64_t n, const Shape& image);

  // Copies the batch, which is host memory, and the numbers of its step to
  // pinned memory, and enqueues their copy to the GPU. Returns them in device
  // memory; all arrays are aligned to 64 bytes. The stream must have reached
  // the end of the last copy, and the work that used it must be done. Allocates
  // if the batch is larger than all before it; otherwise equal sizes have equal
  // addresses. Errors: those of CUDA.
  absl::StatusOr<DeviceBatch> Enqueue(const Batch& batch, float learning_rate,
                                      cudaStream_t stream);

 private:
  absl::Status ReserveBytes(int64_t bytes);

  PinnedMemory pinned_;
  DeviceMemory device_;
  int64_t capacity_ = 0;  // In bytes.
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_BATCH_COPY_H_
