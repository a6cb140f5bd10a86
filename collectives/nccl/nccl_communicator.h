// The `nccl` backend: each rank has a GPU, or several ranks share one. In
// programs that link this library, CreateGroup("nccl") calls JoinNcclGroup().
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/gpu_direct.h"
#include "collectives/nccl/gpu_ring.h"
#include "collectives/nccl/issue_order.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/watchdog.h"
#include "collectives/pending_collective.h"

namespace lockstep {

struct NcclOptions {
  // The rank's device, as for cudaSetDevice.
  int device = 0;

  // The stream that orders the calls. A call starts after all work enqueued on
  // this stream before the call, and work enqueued later sees the results.
  // Default: the legacy default stream. The stream must outlive the
  // communicator's last Wait.
  cudaStream_t stream = nullptr;

  // timeout: how long a call may last, once the work before it on the stream
  // has ended, and how long joining may take. algorithm: how AllReduce, Reduce
  // and ReduceScatter are computed.
  //   kAuto    NCCL's own reductions where they mean what collective.h says
  //            (nccl_handle.h), in NCCL's order of additions; otherwise kRing.
  //   kRing    our ring, in the order of additions of algorithms/schedule.h.
  //   kDirect  AllReduce and ReduceScatter of memory from Allocate read the
  //            other ranks' memory, if all ranks can access each other's, with
  //            the ring's bits. All ranks must use the same places of that
  //            memory. Other calls use kRing.
  //   kTree    is not supported.
  // slot_bytes is not used. Rank 0's algorithm, nccl_arithmetic and chunk_bytes
  // apply to the whole group.
  GroupOptions group;

  // With kAuto: use NCCL's own reductions for every type and operation.
  bool nccl_arithmetic = false;

  // The bytes that our ring transfers at once, a multiple of 16. The ring
  // allocates four times that in device memory. An NCCL message costs as much
  // time as transferring about 2 MiB, so large chunks are better.
  int64_t chunk_bytes = 32 << 20;
};

// Buffers are device or managed memory of the rank's device. Buffers of
// reductions must be aligned to their elements; other buffers need not be.
// Buffers may be freed once the stream has reached the end of the call. Run
// sets the calling thread's current device.
//
// Run enqueues a call at its position in the stream and returns; only Wait,
// Barrier, Allocate and Split block the host. A thread of the communicator
// (watchdog.h) compares the calls of all ranks, and watches them while they
// run. The group fails if ranks disagree, if a rank made an invalid call,
// reported an error of NCCL or CUDA, died or left, or if a call has exceeded
// the timeout. All ranks then abort their communicators, which releases their
// streams, and return the same error once, from the next call or Wait. The data
// of calls that have not been waited for is then unspecified.
//
// The stream may be one that is being captured in a graph. Ranks that disagree
// then get an error as above, but whoever launches the graph must watch its
// execution. Within Capture the calls are not compared; Replay, which launches
// the graph, compares and watches them. Graphs must be destroyed before the
// communicator.
class NcclCommunicator : public Communicator {
 public:
  // Creates the group. Every rank must call it, with a control group on host
  // memory whose ranks become this group's ranks, and which should have the
  // same timeout. Blocks until all ranks have called it.
  //
  // Errors, besides those of Communicator's calls and the same on every rank:
  // kInvalidArgument for options that are not supported; kFailedPrecondition if
  // ranks share a GPU in a way that NCCL does not support (gpu_sharing.h);
  // errors of CUDA and NCCL. Sets environment variables of the process if ranks
  // share a GPU, and with kRing and kDirect: no other thread should use the
  // environment then. NCCL reads them once.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      std::unique_ptr<Communicator> control, const NcclOptions& options);

  // Waits until this rank's calls have ended, and at most a second for the
  // other ranks to do the same, so that NCCL can be finalized in order.
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  absl::Status Run(const Collective& call) override;
  absl::Status Wait() override;
  // Makes the call as Run does. The handle's Wait blocks until the call has
  // ended on this rank, and every rank was seen to make the same calls.
  PendingCollective Start(const Collective& call) override;
  bool enqueues() const override { return true; }
  // Allocates device memory. Only with kDirect is it faster than other memory.
  absl::StatusOr<GroupBuffer> Allocate(
      int64_t bytes, CallSite site = CallSite::Here()) override;
  // Splits the control group, and makes new communicators on the same devices.
  // NCCL's kernels wait for each other on the GPU, so every rank must begin the
  // calls of both groups in the same order: one thread should make them. If the
  // new group has all ranks and they begin calls in different orders, the group
  // fails at once (kInvalidArgument). If it has fewer, the ranks' calls wait
  // for each other until the timeout.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      int color, int key, CallSite site = CallSite::Here()) override {
    return SplitOnStream(color, key, options_.stream, site);
  }
  // The same, for a group whose calls follow `stream` (NcclOptions::stream), a
  // stream of the same device. So one rank can sum gradients behind an urgent
  // stream, and exchange the statistics of SyncBatchNorm on the stream that
  // computes them.
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> SplitOnStream(
      int color, int key, cudaStream_t stream,
      CallSite site = CallSite::Here());

  // The calls that a graph has captured.
  struct CapturedCalls {
    int64_t count = 0;
    uint64_t hash = 0;  // Of what ranks must agree on, in order.
  };

  // Runs `enqueue`, whose calls of this group are part of a stream's capture.
  // Replay compares these calls with other ranks', and Capture does not;
  // Start's handles have nothing to wait for. All ranks should capture at the
  // same time: NCCL may exchange messages between hosts when it registers
  // memory in a capture (NCCL_GRAPH_REGISTER). Returns the calls. Errors: those
  // of `enqueue`, which fail the group; kInvalidArgument for a Barrier, Send,
  // Receive, Allocate or Split.
  absl::StatusOr<CapturedCalls> Capture(
      absl::FunctionRef<absl::Status()> enqueue,
      CallSite site = CallSite::Here());

  // Calls `launch`, which puts a graph with these calls on the stream. Every
  // rank must make the call, and its graph must have captured the same calls,
  // in the same order among those of the groups that Split has made. The graph
  // is compared and watched as one call: all its work, calls or not, has the
  // group's timeout from its position in the stream. With two groups whose
  // calls are in one graph, Replay of one is the other's `launch`. Errors: as
  // for Run; that of `launch`, which fails the group.
  absl::Status Replay(const CapturedCalls& calls, cudaStream_t stream,
                      absl::FunctionRef<absl::Status()> launch,
                      CallSite site = CallSite::Here());

  // Whether two ranks share a GPU: results are right, but times are
  // meaningless.
  bool shared_gpu() const { return shared_gpu_; }

  // Whether reductions of memory from Allocate read the other ranks' memory.
  // Without kDirect, or if ranks cannot access that memory, they do not.
  bool is_direct() const { return direct_ != nullptr; }

 private:
  NcclCommunicator(const Communicator& control, const NcclOptions& options,
                   std::shared_ptr<IssueOrder> order)
      : options_(options),
        rank_(control.rank()),
        world_size_(control.world_size()),
        order_(std::move(order)) {}

  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      std::unique_ptr<Communicator> control, const NcclOptions& options,
      std::shared_ptr<IssueOrder> order);

  absl::Status Join(std::unique_ptr<Communicator> control);
  absl::Status Prepare();
  absl::Status CreateDirect(Communicator& control);
  void CloseDirect();
  void Abort();
  // Waits until the stream has no work, at most `limit`. of_ring: and the
  // ring's streams.
  void WaitForStreams(absl::Duration limit, bool of_ring) const;
  absl::Status CheckArguments(const Collective& call) const;
  // Makes the call, and returns its number for the watchdog; -1 within Capture.
  absl::StatusOr<int64_t> Issue(const Collective& call);
  // Makes the call within Capture.
  absl::Status IssueCaptured(const Collective& collective, const Call& call,
                             bool is_direct);
  // Enqueues the call between two events, which order it on the caller's
  // stream. is_direct: whether direct_ runs it. capturing: whether the caller's
  // stream is being captured.
  absl::Status Enqueue(const Collective& call, bool is_direct, bool capturing,
                       const CallEvents& events);
  absl::Status EnqueueOnOwnStream(const Collective& call, bool is_direct,
                                  bool capturing);
  absl::StatusOr<bool> IsCapturing() const;
  bool UsesRing(const Collective& call) const;
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateOwn(int64_t bytes) const;
  absl::Status Zero(std::byte* memory, int64_t bytes);

  NcclOptions options_;
  const int rank_;
  const int world_size_;
  // Shared with the groups of the same ranks that Split has made.
  const std::shared_ptr<IssueOrder> order_;
  bool shared_gpu_ = false;
  // Shared with worker threads: an abandoned thread may use them after the
  // communicator is gone.
  std::shared_ptr<std::remove_pointer_t<cudaStream_t>> stream_;
  const std::shared_ptr<NcclHandle> handle_ = std::make_shared<NcclHandle>();
  std::shared_ptr<GpuRing> ring_;
  std::unique_ptr<GpuDirect> direct_;
  CapturedCalls* captured_ = nullptr;  // Within Capture.
  int64_t captured_begin_ = 0;         // order_->captured() at its begin.
  // The stream of the last Replay; null: none.
  std::atomic<cudaStream_t> replayed_on_ = nullptr;
  // Last: its thread uses the members above.
  std::unique_ptr<Watchdog> watchdog_;
};

// Joins the `nccl` group of all ranks that a launcher started on this host. A
// rank gets GPU number LOCAL_RANK modulo the number of GPUs that it sees,
// instead of options.device. Its control group is JoinLaunchedGroup's, with
// options.group. For ranks on several hosts, pass a group from JoinMpiGroup to
// NcclCommunicator::Create instead.
//
// Errors: kFailedPrecondition if no launcher started this process; kNotFound if
// there is no GPU; those of JoinLaunchedGroup and of NcclCommunicator::Create.
absl::StatusOr<std::unique_ptr<NcclCommunicator>> JoinNcclGroup(
    NcclOptions options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
