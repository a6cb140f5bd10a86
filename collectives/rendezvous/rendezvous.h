// The rendezvous: ranks that do not know each other's addresses find each
// other.
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

// A meeting place for the ranks of one run. Not thread safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  virtual int rank() const = 0;        // In [0, world_size()).
  virtual int world_size() const = 0;  // At least 1.
  // The address, as a number, from which this host reaches rank 0's host; "" if
  // unknown.
  virtual std::string own_address() const { return "127.0.0.1"; }

  // Publishes `blob` (any bytes, up to kMaxBlobBytes) and returns every rank's
  // blob, in rank order, once all are there. The k-th call of each rank meets
  // the k-th call of every other rank. Errors: kDeadlineExceeded, naming the
  // ranks that did not arrive; kUnavailable, naming a rank that died;
  // kAlreadyExists if two live processes claim one rank; kInvalidArgument if
  // ranks disagree on the world size, or a blob is too large. All ranks get the
  // first error of one rank at once, and every later Exchange returns it.
  virtual absl::StatusOr<std::vector<std::string>> Exchange(
      absl::string_view blob) = 0;
};

// Returns kInvalidArgument unless world_size is in [1, kLargestWorldSize] and
// rank in [0, world_size).
absl::Status CheckRank(int rank, int world_size);

// Returns kInvalidArgument, naming the rank, if `blob` has more than
// kMaxBlobBytes.
absl::Status CheckBlob(int rank, absl::string_view blob);

// Exchanges each rank's blob or its error. If any rank has an error, every rank
// returns the error of the lowest such rank, "rank 1 cannot join: ...", without
// waiting for that rank any longer. Other errors: Exchange's.
absl::StatusOr<std::vector<std::string>> ExchangeResults(
    Rendezvous& rendezvous, const absl::StatusOr<std::string>& mine);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_
