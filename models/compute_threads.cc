// The one call into the OpenMP runtime that oneDNN brings along.
#include "models/compute_threads.h"

// Declared here because <omp.h> is absent where the compiler's own OpenMP is
// not installed, while oneDNN's runtime, which has the function, always is.
extern "C" void omp_set_num_threads(int count);

namespace lockstep {

void SetComputeThreads(int count) { omp_set_num_threads(count); }

}  // namespace lockstep
