// How ranks that do not know each other yet find each other.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

inline constexpr size_t kMaxBlobBytes = 64 << 10;
inline constexpr int32_t kLargestWorldSize = 1 << 20;

// A meeting place for one run. Not thread safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  virtual int rank() const = 0;        // In [0, world_size()).
  virtual int world_size() const = 0;  // At least 1.

  // Publishes `blob` (any bytes, up to kMaxBlobBytes) and returns every rank's
  // blob, in rank order, once all are there. The k-th call of each rank meets
  // the k-th call of the others. Errors: kDeadlineExceeded names the ranks that
  // did not come; kUnavailable names one that died; kAlreadyExists if two live
  // processes claim one rank; kInvalidArgument if ranks disagree on the world
  // size, or a blob is too large.
  virtual absl::StatusOr<std::vector<std::string>> Exchange(
      absl::string_view blob) = 0;
};

// kInvalidArgument unless world_size is in [1, kLargestWorldSize] and rank in
// [0, world_size).
absl::Status CheckRank(int rank, int world_size);

// kInvalidArgument, naming the rank, for more than kMaxBlobBytes.
absl::Status CheckBlob(int rank, absl::string_view blob);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_
