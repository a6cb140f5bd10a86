// Where a layer's tensors are copied to, if it does not run on the host.
#ifndef LOCKSTEP_BENCHMARKS_LAYER_MIRROR_H_
#define LOCKSTEP_BENCHMARKS_LAYER_MIRROR_H_

#include <span>

#include "absl/status/status.h"

namespace lockstep {

// Memory of a device, each part of which is a copy of host memory.
class LayerMirror {
 public:
  virtual ~LayerMirror() = default;

  // Adds device memory for `host`, which outlives this, not yet copied.
  virtual absl::Status Add(std::span<float> host) = 0;
  // The device memory of what begins at `host` and was added.
  virtual void* Of(const float* host) const = 0;

  // Copy all of it from the host, and back; return when it is done.
  virtual absl::Status Upload() = 0;
  virtual absl::Status Download() = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_LAYER_MIRROR_H_
