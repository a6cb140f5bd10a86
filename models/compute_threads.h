// How many threads a rank computes on.
#ifndef LOCKSTEP_MODELS_COMPUTE_THREADS_H_
#define LOCKSTEP_MODELS_COMPUTE_THREADS_H_

namespace lockstep {

// Sets how many OpenMP threads oneDNN uses for what the calling thread computes
// from now on; each rank thread calls it for itself. count: at least 1.
void SetComputeThreads(int count);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_COMPUTE_THREADS_H_
