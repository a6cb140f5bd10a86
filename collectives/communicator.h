// The interface of the collectives, which every backend implements and
// conformance/ tests.
#ifndef LOCKSTEP_COLLECTIVES_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/collective.h"
#include "collectives/pending_collective.h"

namespace lockstep {

// One rank's part of the memory that Communicator::Allocate made. Owns it: the
// memory is freed with the last copy.
class GroupBuffer {
 public:
  GroupBuffer() = default;
  GroupBuffer(std::shared_ptr<void> owner, std::span<std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  std::span<std::byte> bytes() const { return bytes_; }

  // Returns the same memory as elements of T. Bytes at the end that do not fill
  // an element are left out.
  template <typename T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  std::shared_ptr<void> owner_;
  std::span<std::byte> bytes_;
};

// Settings of a group of ranks.

// The algorithm by which AllReduce and Reduce move and add the data. The bits
// do not depend on it: algorithms/schedule.h gives the order of additions for
// each size. If an algorithm cannot add in that order, another algorithm runs
// that size (algorithms/over_transport.h lists which). kAuto chooses by size
// and by the memory that the ranks share.
enum class Algorithm : int32_t {
  kAuto,
  kRing,    // Round the ring in pieces: optimal bandwidth over messages.
  kTree,    // Recursive halving and doubling: fewest messages.
  kDirect,  // Each rank reduces its slice from the other ranks' memory.
};

inline constexpr Algorithm kAllAlgorithms[] = {
    Algorithm::kAuto, Algorithm::kRing, Algorithm::kTree, Algorithm::kDirect};

// "auto", "ring", "tree", "direct".
constexpr const char* Name(Algorithm algorithm) {
  constexpr const char* kNames[] = {"auto", "ring", "tree", "direct"};
  const auto index = static_cast<size_t>(algorithm);
  return index < std::size(kNames) ? kNames[index] : "unknown algorithm";
}
inline std::optional<Algorithm> ParseAlgorithm(absl::string_view name) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (name == Name(algorithm)) return algorithm;
  }
  return std::nullopt;
}

// The most ranks that a group of one host may have: a set of ranks fits in 64
// bits.
inline constexpr int kMaxWorldSize = 64;

struct GroupOptions {
  // The longest time that a call, or joining the group, waits without progress
  // for a rank that is alive but late. A dead rank is reported at once.
  absl::Duration timeout = absl::Seconds(60);

  // The largest piece of a message that moves at once between two ranks: a
  // multiple of 64, at most 16 MiB. The whole group uses rank 0's value.
  // Results do not depend on it.
  int64_t slot_bytes = 128 << 10;

  // The algorithm. The whole group uses rank 0's value.
  Algorithm algorithm = Algorithm::kAuto;
};

// One rank's membership in a group of P = world_size() ranks that issue the
// same calls in the same order. Not thread safe: one thread at a time uses one
// rank.
//
// Every call but Send and Receive compares itself with the calls of the other
// ranks (operation, count, type, reduction, root) before any data moves. Each
// call is thus also a point that no rank passes before all have reached it. (On
// a device the comparison comes within milliseconds of the call, and before
// Wait returns.)
//
// Buffers: any number of elements, zero included, of any alignment. Input and
// output have one type. They do not overlap, except in the in-place form that
// each call names. The input is not changed, except in place.
//
// Reductions: the bits of the result depend only on the type, the operation,
// the count and P (algorithms/schedule.h). They do not depend on the backend,
// the algorithm's pieces or the timing. Every rank gets the same bits. The nccl
// backend differs: kAuto adds in NCCL's own order wherever NCCL reduces, and
// kRing and kDirect add in the ring's order also up to 16 KiB, where other
// backends add in the tree's.
//
// Errors, the same for every call:
//   kInvalidArgument   the ranks disagree, or this rank's arguments are wrong;
//                      the message says which rank called what, and where.
//   kUnavailable       a rank died or left the group; the message names it.
//   kDeadlineExceeded  a rank did not come in time; the message names it.
// After an error the data is unspecified, and every later call returns
// kFailedPrecondition with the first cause.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;        // In [0, world_size()).
  virtual int world_size() const = 0;  // At least 1.

  // Runs a call. All of the functions below call Run. Blocks until the call's
  // output is readable and its input may be reused. On a device, a call is only
  // enqueued in the order of the device's work. Its output is then readable by
  // work that is enqueued later, and on the host after Wait.
  virtual absl::Status Run(const Collective& call) = 0;

  // Blocks until all calls so far have ended on this rank and every rank was
  // seen to make the same ones. Errors: those of the calls. On the host, calls
  // end before they return, so Wait does nothing.
  virtual absl::Status Wait() { return absl::OkStatus(); }

  // Starts a call, and returns its handle. The buffers are borrowed until the
  // handle's Wait has returned; the handle must not outlive the communicator.
  // If the communicator enqueues, the call takes its position in the order of
  // the device's work, and Start returns at once. Otherwise the call has ended
  // when Start returns. (AsyncCommunicator starts calls of every backend
  // without waiting for them.)
  virtual PendingCollective Start(const Collective& call);

  // Whether Start only enqueues a call, so that a device runs it.
  virtual bool enqueues() const { return false; }

  // Reduces input element by element over all ranks into output. In place: the
  // same memory, or the second form. Cost: 2 (P-1)/P * size bytes sent per rank
  // (Patarasuk & Yuan 2009).
  absl::Status AllReduce(ConstBuffer input, Buffer output,
                         ReduceOp op = ReduceOp::kSum,
                         CallSite site = CallSite::Here()) {
    return Run(Collective::AllReduce(input, output, op, site));
  }
  absl::Status AllReduce(Buffer data, ReduceOp op = ReduceOp::kSum,
                         CallSite site = CallSite::Here()) {
    return Run(Collective::AllReduce(data, op, site));
  }

  // Reduces as AllReduce does, with the same bits, into the root's output.
  // Other ranks' output is not used. In place: the same memory.
  absl::Status Reduce(ConstBuffer input, Buffer output, ReduceOp op, int root,
                      CallSite site = CallSite::Here()) {
    return Run(Collective::Reduce(input, output, op, root, site));
  }

  // Stores part rank() of P equal parts of the reduction in output. Input has P
  // times output's count. In place: output is its own part of input.
  //
  // Cost: (P-1)/P * size of the input sent per rank.
  absl::Status ReduceScatter(ConstBuffer input, Buffer output,
                             ReduceOp op = ReduceOp::kSum,
                             CallSite site = CallSite::Here()) {
    return Run(Collective::ReduceScatter(input, output, op, site));
  }

  // Stores every rank's input in output, in rank order. Output has P times
  // input's count. With `counts`, which must match on all ranks, it has
  // counts[r] elements of rank r. In place: input is its own part of output.
  //
  // Cost: the input sent P-1 times per rank (each on its way round the ring).
  absl::Status AllGather(ConstBuffer input, Buffer output,
                         CallSite site = CallSite::Here()) {
    return Run(Collective::AllGather(input, output, site));
  }
  absl::Status AllGather(ConstBuffer input, Buffer output,
                         std::span<const int64_t> counts,
                         CallSite site = CallSite::Here()) {
    return Run(Collective::AllGather(input, output, counts, site));
  }

  // Replaces `data` with the root's data, bit for bit.
  absl::Status Broadcast(Buffer data, int root,
                         CallSite site = CallSite::Here()) {
    return Run(Collective::Broadcast(data, root, site));
  }

  // Stores part rank() of P equal parts of the root's input in output. The
  // root's input has P times output's count; other ranks' input is not used. In
  // place on the root: output is its own part of input.
  absl::Status Scatter(ConstBuffer input, Buffer output, int root,
                       CallSite site = CallSite::Here()) {
    return Run(Collective::Scatter(input, output, root, site));
  }

  // Stores every rank's input, in rank order, in the root's output. Other
  // ranks' output is not used. In place on the root: input is its own part of
  // output.
  absl::Status Gather(ConstBuffer input, Buffer output, int root,
                      CallSite site = CallSite::Here()) {
    return Run(Collective::Gather(input, output, root, site));
  }

  // Stores part rank() of rank r's input in part r of P equal parts of output.
  // There is no in-place form.
  absl::Status AllToAll(ConstBuffer input, Buffer output,
                        CallSite site = CallSite::Here()) {
    return Run(Collective::AllToAll(input, output, site));
  }

  // Moves `data` from one rank to another, which calls Receive with the same
  // count and type. Both block until the data has arrived. Two ranks that both
  // Send, or both Receive, disagree. Other ranks take no part.
  absl::Status Send(ConstBuffer data, int destination,
                    CallSite site = CallSite::Here()) {
    return Run(Collective::Send(data, destination, site));
  }
  absl::Status Receive(Buffer data, int source,
                       CallSite site = CallSite::Here()) {
    return Run(Collective::Receive(data, source, site));
  }

  // Returns once every rank has called Barrier.
  absl::Status Barrier(CallSite site = CallSite::Here()) {
    return Run(Collective::Barrier(site));
  }

  // Allocates the memory in which collectives are fastest, `bytes` for each
  // rank. `bytes` must match on all ranks. The memory is zeroed and aligned to
  // at least 64. Where ranks share memory, they reduce straight from each
  // other's buffers. The memory may outlive the group.
  virtual absl::StatusOr<GroupBuffer> Allocate(
      int64_t bytes, CallSite site = CallSite::Here()) = 0;

  // Splits the group. Ranks of one color form a new group, ordered by key, then
  // by rank. A rank with a negative color joins no group and gets null.
  //
  // The new group is independent of this one, also in failure. One thread of a
  // rank may use the new group while another thread uses this one. Ranks need
  // not agree on which group's call comes first. (Calls of
  // nccl/nccl_communicator.h are GPU kernels and need more; see there.)
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(
      int color, int key, CallSite site = CallSite::Here()) = 0;
};

// A base for groups that watch or change some calls. Passes every call on to
// `inner`, which it borrows. Start runs a call to its end, so that a class
// which overrides Run sees all calls.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  absl::Status Run(const Collective& call) override { return inner_.Run(call); }
  absl::Status Wait() override { return inner_.Wait(); }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    return inner_.Allocate(bytes, site);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override {
    return inner_.Split(color, key, site);
  }

 protected:
  Communicator& inner() { return inner_; }

 private:
  Communicator& inner_;
};

// Collectives of objects that are not one buffer, and a function for one rank.

// Returns every rank's bytes, in rank order. Each rank may give any bytes of
// any size, for example serialized objects. Errors: the communicator's.
//
// Cost: an AllGather of one int64, and one of the bytes.
absl::StatusOr<std::vector<std::string>> AllGatherObject(
    Communicator& communicator, absl::string_view bytes,
    CallSite site = CallSite::Here());

// Replaces every tensor with the average, or else the sum, over all ranks of
// the tensors of that name. Borrows the memory.
//
// Errors: kInvalidArgument, on every rank, if names, types or counts do not
// match on all ranks. The message then says what differs, nothing is changed,
// and the group remains usable. Other errors are the communicator's.
//
// Cost: an AllGatherObject of the names, and an AllReduce for each.
absl::Status ReduceDict(Communicator& communicator,
                        const std::map<std::string, Buffer>& tensors,
                        bool average = true, CallSite site = CallSite::Here());

// Calls fn on rank dst_rank and returns its result. Other ranks return at once:
// OnRank does not communicate. Without a dst_rank every rank calls fn, so the
// same code also runs with a group of one. Errors: fn's; kInvalidArgument, on
// every rank, if there is no rank dst_rank.
absl::Status OnRank(const Communicator& communicator,
                    std::optional<int> dst_rank,
                    absl::FunctionRef<absl::Status()> fn);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_COMMUNICATOR_H_
