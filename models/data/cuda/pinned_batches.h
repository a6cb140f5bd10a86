// Memory for a loader's batches from which a GPU copies directly.
#ifndef LOCKSTEP_MODELS_DATA_CUDA_PINNED_BATCHES_H_
#define LOCKSTEP_MODELS_DATA_CUDA_PINNED_BATCHES_H_

#include "models/data/loader.h"

namespace lockstep {

// Returns an allocator of pinned host memory for LoaderOptions::allocate. A GPU
// copies from such memory directly, and cudaMemcpyAsync returns before the copy
// is done. The copy must finish before the next call of Next, which reuses the
// batch's memory for other samples.
//
// The allocator returns null if the runtime refuses. It then clears the
// runtime's error (cudaGetLastError), so that later launches do not report it.
// The memory belongs to the device that is current when a loader is made; all
// devices can copy from it. Freeing the memory with the loader waits for that
// device.
AllocateBatches PinnedBatches();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_CUDA_PINNED_BATCHES_H_
