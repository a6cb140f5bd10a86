// Host memory that is kept from call to call.
#ifndef LOCKSTEP_SYNCBN_CPU_SCRATCH_H_
#define LOCKSTEP_SYNCBN_CPU_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// Aligned to 64. Errors: kResourceExhausted.
absl::StatusOr<std::shared_ptr<std::byte>> AllocateHost(int64_t bytes);

// Memory that grows to what was last asked for.
class Scratch {
 public:
  // At least `bytes`, aligned to 64, unspecified, until the next call.
  absl::StatusOr<std::byte*> Reserve(int64_t bytes);

 private:
  std::shared_ptr<std::byte> memory_;
  int64_t bytes_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_SCRATCH_H_
