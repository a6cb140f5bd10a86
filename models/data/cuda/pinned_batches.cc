#include "models/data/cuda/pinned_batches.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "models/data/loader.h"

namespace lockstep {

AllocateBatches PinnedBatches() {
  return [](int64_t bytes) -> std::shared_ptr<std::byte> {
    absl::StatusOr<PinnedMemory> memory = AllocatePinnedMemory(bytes);
    if (memory.ok()) return *std::move(memory);
    cudaGetLastError();
    return nullptr;
  };
}

}  // namespace lockstep
