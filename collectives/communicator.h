// The interface of the collectives: what every backend offers and conformance/
// holds it to.
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

namespace lockstep {

// One rank's part of what Communicator::Allocate made. Owns it: the memory goes
// with the last copy.
class GroupBuffer {
 public:
  GroupBuffer() = default;
  GroupBuffer(std::shared_ptr<void> owner, std::span<std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  std::span<std::byte> bytes() const { return bytes_; }

  // The same memory as elements of T; what does not fill an element is left
  // out.
  template <typename T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  std::shared_ptr<void> owner_;
  std::span<std::byte> bytes_;
};

// Settings of a group of ranks.

// How AllReduce and Reduce move and add the data. The bits do not depend on it:
// for each size, algorithms/schedule.h gives the order of additions, and an
// algorithm that cannot keep to it leaves that size to another
// (algorithms/over_transport.h says which). kAuto chooses by size and by what
// the ranks share.
enum class Algorithm : int32_t {
  kAuto,
  kRing,    // Round the ring in pieces: bandwidth-optimal over messages.
  kTree,    // Recursive halving and doubling: fewest messages.
  kDirect,  // Each rank reduces its slice straight from its peers' memory.
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

// Ranks that a group of one host may have: a set of ranks fits in 64 bits.
inline constexpr int kMaxWorldSize = 64;

struct GroupOptions {
  // How long a call, or joining the group, waits without progress for a rank
  // that is alive but does not come. A dead rank is reported at once.
  absl::Duration timeout = absl::Seconds(60);

  // The largest piece of a message that moves at once between two ranks: a
  // multiple of 64, at most 16 MiB. Rank 0's value holds for the group. Results
  // do not depend on it.
  int64_t slot_bytes = 128 << 10;

  // Rank 0's value holds for the group.
  Algorithm algorithm = Algorithm::kAuto;
};

// One rank's membership in a group of P = world_size() ranks that issue the
// same calls in the same order. Not thread safe: one thread at a time uses one
// rank.
//
// Every call but Send and Receive compares itself with what the other ranks
// called (operation, count, type, reduction, root) before any data moves, so it
// is also a point that no rank passes before all have reached it. (On a device
// the comparison comes within milliseconds of the call, and before Wait
// returns.)
//
// Buffers: any number of elements, zero included, of any alignment. Input and
// output are of one type and do not overlap, but for the in-place form that
// each call names. The input is left as it was, except in place.
//
// Reductions: the bits of the result depend on the type, the operation, the
// count and P alone (algorithms/schedule.h), not on the backend, the
// algorithm's pieces, or time; every rank gets the same bits.
//
// Errors, the same for every call:
//   kInvalidArgument   the ranks disagree, or this rank's arguments are wrong;
//                      the message says which rank asked for what, and where.
//   kUnavailable       a rank died or left the group; the message names it.
//   kDeadlineExceeded  a rank did not come in time; the message names it.
// The data is then unspecified, and every later call returns
// kFailedPrecondition with the first cause.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;        // In [0, world_size()).
  virtual int world_size() const = 0;  // At least 1.

  // Runs a call; blocks until its output is readable and its input is free.
  // All of the functions below come here. On a device a call only takes its
  // place in the order of the device's work: its output is readable there by
  // what is enqueued later, and on the host after Wait.
  virtual absl::Status Run(const Collective& call) = 0;

  // Blocks until all calls so far have ended on this rank, and every rank was
  // seen to make the same ones. Errors: those of the calls. On the host calls
  // end before they return, and this does nothing.
  virtual absl::Status Wait() { return absl::OkStatus(); }

  // output = input reduced element by element over all ranks. In place: the
  // same memory, or the second form.
  // Cost: 2 (P-1)/P * size bytes sent per rank (Patarasuk & Yuan 2009).
  absl::Status AllReduce(ConstBuffer input, Buffer output,
                         ReduceOp op = ReduceOp::kSum,
                         CallSite site = CallSite::Here()) {
    return Run(Collective::AllReduce(input, output, op, site));
  }
  absl::Status AllReduce(Buffer data, ReduceOp op = ReduceOp::kSum,
                         CallSite site = CallSite::Here()) {
    return Run(Collective::AllReduce(data, op, site));
  }

  // The same on the root, with the same bits; elsewhere output is not used. In
  // place: the same memory.
  absl::Status Reduce(ConstBuffer input, Buffer output, ReduceOp op, int root,
                      CallSite site = CallSite::Here()) {
    return Run(Collective::Reduce(input, output, op, root, site));
  }

  // output = part rank() of P equal parts of the reduction; input has P times
  // output's count. In place: output is its own part of input.
  // Cost: (P-1)/P * size of the input sent per rank.
  absl::Status ReduceScatter(ConstBuffer input, Buffer output,
                             ReduceOp op = ReduceOp::kSum,
                             CallSite site = CallSite::Here()) {
    return Run(Collective::ReduceScatter(input, output, op, site));
  }

  // output = every rank's input, in rank order: P times input's count, or with
  // `counts`, the same on every rank, counts[r] elements of rank r. In place:
  // input is its own part of output.
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

  // Replaces `data` with the root's, bit for bit.
  absl::Status Broadcast(Buffer data, int root,
                         CallSite site = CallSite::Here()) {
    return Run(Collective::Broadcast(data, root, site));
  }

  // output = part rank() of P equal parts of the root's input, which has P
  // times output's count and is not used elsewhere. In place on the root:
  // output is its own part of input.
  absl::Status Scatter(ConstBuffer input, Buffer output, int root,
                       CallSite site = CallSite::Here()) {
    return Run(Collective::Scatter(input, output, root, site));
  }

  // On the root, output = every rank's input, in rank order; elsewhere output
  // is not used. In place on the root: input is its own part of output.
  absl::Status Gather(ConstBuffer input, Buffer output, int root,
                      CallSite site = CallSite::Here()) {
    return Run(Collective::Gather(input, output, root, site));
  }

  // Part r of P equal parts of output = part rank() of rank r's input. Not in
  // place.
  absl::Status AllToAll(ConstBuffer input, Buffer output,
                        CallSite site = CallSite::Here()) {
    return Run(Collective::AllToAll(input, output, site));
  }

  // Moves `data` from one rank to another, which calls Receive with the same
  // count and type. Both block until the data is there. Two that both Send, or
  // both Receive, disagree. Other ranks take no part.
  absl::Status Send(ConstBuffer data, int destination,
                    CallSite site = CallSite::Here()) {
    return Run(Collective::Send(data, destination, site));
  }
  absl::Status Receive(Buffer data, int source,
                       CallSite site = CallSite::Here()) {
    return Run(Collective::Receive(data, source, site));
  }

  // Returns once every rank has called it.
  absl::Status Barrier(CallSite site = CallSite::Here()) {
    return Run(Collective::Barrier(site));
  }

  // Memory in which collectives are fastest, `bytes` of it for each rank, the
  // same on every rank; zeroed, aligned to 64 at least. Where ranks share
  // memory, they reduce straight from each other's. It may outlive the group.
  virtual absl::StatusOr<GroupBuffer> Allocate(
      int64_t bytes, CallSite site = CallSite::Here()) = 0;

  // Splits the group: ranks of one color form a new group, ordered by key, then
  // by rank. With a negative color a rank joins none, and gets null. The new
  // group is independent of this one, also in failure: one thread of a rank may
  // use it while another uses this one, and ranks need not agree on whose call
  // comes first (nccl/nccl_communicator.h, where calls are GPU kernels, says
  // what it needs beyond that).
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(
      int color, int key, CallSite site = CallSite::Here()) = 0;
};

// Passes every call on to `inner`, which it borrows: a base for groups that
// watch or change some of them.
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

// Collectives of things that are not one buffer, and work for one rank alone.

// Every rank's bytes, in rank order; any bytes, of any size on each rank. For
// objects of a program's own, serialized. Errors: the communicator's.
// Cost: an AllGather of one int64, and one of the bytes.
absl::StatusOr<std::vector<std::string>> AllGatherObject(
    Communicator& communicator, absl::string_view bytes,
    CallSite site = CallSite::Here());

// Replaces every tensor with the average, or else the sum, over all ranks of
// the tensors of that name. Borrows the memory.
//
// Errors: kInvalidArgument, on every rank, if the ranks do not have the same
// names, types and counts: the message says what differs, nothing is changed,
// and the group can be used further; else the communicator's.
// Cost: an AllGatherObject of the names, and an AllReduce for each.
absl::Status ReduceDict(Communicator& communicator,
                        const std::map<std::string, Buffer>& tensors,
                        bool average = true, CallSite site = CallSite::Here());

// Calls fn where rank() is dst_rank, and returns what it returns; elsewhere
// returns at once: it does not communicate. Without a dst_rank every rank calls
// it, so that the same code runs without a group of more than one. Errors:
// fn's; kInvalidArgument, on every rank, if there is no rank dst_rank.
absl::Status OnRank(const Communicator& communicator,
                    std::optional<int> dst_rank,
                    absl::FunctionRef<absl::Status()> fn);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_COMMUNICATOR_H_
