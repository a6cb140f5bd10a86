// Collectives with known results, and a transport to run them on, for tests of
// algorithms and backends.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_CHECKED_CALL_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_CHECKED_CALL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// Fills `data` with the input of a rank. Elements differ by rank and index, as
// far as the type can tell them apart. No element is a NaN or zero. The sizes
// make floating-point sums depend on their order. For tests that compute sums
// themselves.
void FillInput(int rank, DataType type, int64_t count, void* data);

// The memory of one buffer, between guards that show whether a call wrote
// beside the buffer.
class CheckedMemory {
 public:
  virtual ~CheckedMemory() = default;
  virtual std::byte* data() = 0;
  // Returns the content; kDataLoss if a guard has changed.
  absl::StatusOr<Bytes> Read() const;
  // Returns whether the memory holds `content` and no guard has changed.
  bool Holds(const Bytes& content) const;

 protected:
  explicit CheckedMemory(size_t size) : size_(size) {}

  // Returns the initial image of the memory: `begin` bytes of guards,
  // `content`, then `behind` bytes of guards.
  Bytes Guarded(const Bytes& content, size_t begin, size_t behind);
  // Returns all of the memory as it is now, guards included.
  virtual absl::StatusOr<Bytes> Image() const = 0;

  size_t begin() const { return begin_; }

 private:
  size_t size_;
  size_t begin_ = 0;
};

// Makes memory that holds `content`.
using MakeMemory = std::function<absl::StatusOr<std::unique_ptr<CheckedMemory>>(
    const Bytes& content)>;

// Host memory that begins `offset` bytes past a multiple of 64.
class GuardedMemory : public CheckedMemory {
 public:
  explicit GuardedMemory(const Bytes& content, int64_t offset = 1);

  std::byte* data() override { return bytes_.data() + begin(); }

 private:
  absl::StatusOr<Bytes> Image() const override { return bytes_; }

  Bytes bytes_;
};

// Makes a GuardedMemory; a MakeMemory for RunAndCheck.
absl::StatusOr<std::unique_ptr<CheckedMemory>> MakeGuardedMemory(
    const Bytes& content);

// Makes the calls on one rank, one after the other. The expected output is the
// one that a single rank computes from all inputs in `order`.
//
// Errors: kDataLoss, naming rank, call and element, if an output differs in any
// bit or if other memory was written; the error of the call or of the memory.
absl::Status RunAndCheck(Communicator& communicator,
                         const std::vector<CheckedCall>& calls,
                         AdditionOrder order,
                         const MakeMemory& memory = MakeGuardedMemory);

// Makes and checks the calls with `run`, in unaligned host memory.
absl::Status RunAndCheck(
    Transport& transport, const std::vector<CheckedCall>& calls,
    AdditionOrder order,
    absl::FunctionRef<absl::Status(Transport&, const Collective&)> run);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_CHECKED_CALL_H_
