// Collectives whose answer is known, and a transport to run them on: for tests
// of algorithms and of backends.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_CHECKED_CALL_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_CHECKED_CALL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// The input of a rank, whose elements differ by rank and index as far as the
// type can tell them apart: never a NaN or zero, and of sizes that make
// floating-point sums depend on their order. For tests that add up themselves.
void FillInput(int rank, DataType type, int64_t count, void* data);

// Memory of one buffer, with guards beside it that show whether anything there
// was written.
class CheckedMemory {
 public:
  virtual ~CheckedMemory() = default;
  virtual std::byte* data() = 0;
  // What it holds; kDataLoss if what is beside it has changed.
  absl::StatusOr<Bytes> Read() const;
  // Whether that is what it holds, and nothing beside it was written.
  bool Holds(const Bytes& content) const;

 protected:
  explicit CheckedMemory(size_t size) : size_(size) {}

  // What memory must be at first: `content` behind `begin` bytes of guards, and
  // before `behind` more.
  Bytes Guarded(const Bytes& content, size_t begin, size_t behind);
  // All of the memory, guards included, as it is now.
  virtual absl::StatusOr<Bytes> Image() const = 0;

  size_t begin() const { return begin_; }

 private:
  size_t size_;
  size_t begin_ = 0;
};

// Memory that holds `content`.
using MakeMemory = std::function<absl::StatusOr<std::unique_ptr<CheckedMemory>>(
    const Bytes& content)>;

// Memory of the host, `offset` bytes past a multiple of 64.
class GuardedMemory : public CheckedMemory {
 public:
  explicit GuardedMemory(const Bytes& content, int64_t offset = 1);

  std::byte* data() override { return bytes_.data() + begin(); }

 private:
  absl::StatusOr<Bytes> Image() const override { return bytes_; }

  Bytes bytes_;
};

// For RunAndCheck, in the place of a MakeMemory.
absl::StatusOr<std::unique_ptr<CheckedMemory>> MakeGuardedMemory(
    const Bytes& content);

// Makes the calls on one rank, in turn. kDataLoss, naming rank, call and
// element, if an output is not what one rank computes from all inputs in
// `order`, bit for bit; if anything else was written; or else the error of the
// call, or of the memory.
absl::Status RunAndCheck(Communicator& communicator,
                         const std::vector<CheckedCall>& calls,
                         AdditionOrder order,
                         const MakeMemory& memory = MakeGuardedMemory);

// The same by `run`, in unaligned memory of the host.
absl::Status RunAndCheck(
    Transport& transport, const std::vector<CheckedCall>& calls,
    AdditionOrder order,
    absl::FunctionRef<absl::Status(Transport&, const Collective&)> run);

// A transport between threads of a test, which keeps every promise of Transport
// and not more.

using Piece = std::vector<std::byte>;

struct MemoryTransportOptions {
  int64_t max_piece_bytes = 64;
  int max_pieces = 2;
  // How long a Wait lasts: a deadlock fails, and does not hang.
  absl::Duration timeout = absl::Seconds(20);
  // For controls: what arrives in place of a piece. Called on the sender's
  // thread; at most max_pieces are under way.
  std::function<std::vector<Piece>(int from, int to, Piece piece)> harm = {};
};

// Calls `fn` on `world_size` threads, each with its rank's transport, and
// returns what each returned, in rank order.
//
// Every piece is memory of its own, of its very size, and released with the
// piece, so that the address sanitizer sees what is touched beyond or after it.
//
// Wait: kDeadlineExceeded, naming the rank waited for; kUnavailable as soon as
// that rank's fn has returned and nothing of it is left, or any rank's has
// returned an error.
std::vector<absl::Status> RunOverMemory(
    int world_size, const MemoryTransportOptions& options,
    const std::function<absl::Status(Transport&)>& fn);

// The lowest rank's error that is not kUnavailable; else its kUnavailable; else
// OK.
absl::Status FirstCause(std::span<const absl::Status> statuses);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_CHECKED_CALL_H_
