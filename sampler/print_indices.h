// Indices as text.
#ifndef LOCKSTEP_SAMPLER_PRINT_INDICES_H_
#define LOCKSTEP_SAMPLER_PRINT_INDICES_H_

#include <cstdint>
#include <cstdio>

#include "absl/status/status.h"
#include "sampler/sampler.h"

namespace lockstep {

struct PrintOptions {
  int64_t start_index = 0;    // In [0, size]: those before it are left out.
  int64_t batch_size = 1;     // Indices of a line, separated by one space.
  bool drop_partial = false;  // Leave out the last batch if it is partial.
};

// Writes the indices to `out`, a line at a time, in O(batch_size) memory.
// Errors: the file system's.
absl::Status PrintIndices(const EpochIndices& indices,
                          const PrintOptions& options, std::FILE* out);

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_PRINT_INDICES_H_
