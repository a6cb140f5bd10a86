// A loader's batches in memory from which a GPU copies.
#ifndef LOCKSTEP_MODELS_DATA_CUDA_PINNED_BATCHES_H_
#define LOCKSTEP_MODELS_DATA_CUDA_PINNED_BATCHES_H_

#include "models/data/loader.h"

namespace lockstep {

// Returns an allocator of pinned host memory for LoaderOptions::allocate. A GPU
// copies from such memory without a copy between, and cudaMemcpyAsync returns
// before the copy is done: it must be done before the next call of Next, which
// gives the batch's memory to other samples.
//
// The allocator gives null if the runtime refuses; it then takes the error from
// the runtime (cudaGetLastError), so that later launches do not meet it. Memory
// belongs to the device that is current when a loader is made; all devices copy
// from it. Freeing it, when the loader is gone, waits for that device.
AllocateBatches PinnedBatches();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_CUDA_PINNED_BATCHES_H_
