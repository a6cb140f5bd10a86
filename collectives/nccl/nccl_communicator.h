// The `nccl` backend: ranks with a GPU each, or several on one. In programs
// that are linked with this, CreateGroup("nccl") is JoinNcclGroup().
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/gpu_direct.h"
#include "collectives/nccl/gpu_ring.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/watchdog.h"

namespace lockstep {

struct NcclOptions {
  // Of this rank, as cudaSetDevice takes it.
  int device = 0;

  // In whose order the calls take their place: a call starts after what this
  // stream of the device holds by then, and what is put on it later sees the
  // results. By default the legacy default stream. It must outlive the
  // communicator's last Wait.
  cudaStream_t stream = nullptr;

  // timeout: how long a call may last, from its turn on the GPU, or joining.
  // algorithm: how AllReduce, Reduce and ReduceScatter go about it. kAuto: by
  // NCCL's own reductions where they mean what collective.h says
  // (nccl_handle.h), in NCCL's order of additions; elsewhere as kRing. kRing:
  // our ring, in the order of additions of algorithms/schedule.h (ring).
  // kDirect: AllReduce and ReduceScatter of memory from Allocate read the
  // peers' memory, where all ranks reach each other's, with the ring's bits;
  // ranks use the same places of it; the rest as kRing. kTree is not to be had.
  // slot_bytes is not used. Rank 0's algorithm, and its values of what follows,
  // hold for the group.
  GroupOptions group;

  // With kAuto: NCCL's own reductions for every type and operation.
  bool nccl_arithmetic = false;

  // What our ring moves at once: a multiple of 16. It has four times that of
  // device memory. A message of NCCL costs about as much time as 2 MiB do on
  // the way, so large ones are better.
  int64_t chunk_bytes = 32 << 20;
};

// Buffers are device or managed memory of the rank's device; those of
// reductions are aligned to their elements (others need not be). They may be
// freed once the stream has come past the call. Run sets the calling thread's
// current device.
//
// Run puts a call in its place on the stream and returns; nothing waits on the
// host but Wait, Barrier, Allocate and Split. Calls are compared, and watched
// while they run, by a thread of the communicator (watchdog.h): when ranks
// disagree, one of them made an impossible call, reported an error of NCCL or
// CUDA, died or left, or a call has lasted the timeout, all ranks abort their
// communicators, which lets their streams go on, and return the same error: the
// call or Wait that comes next, once. The data of calls that have not been
// waited for is then unspecified.
//
// The stream may be one that is being captured in a graph. Ranks that disagree
// are then told so as above; what happens when the graph runs is for whoever
// launches it to watch. Graphs must be destroyed before the communicator.
class NcclCommunicator : public Communicator {
 public:
  // Every rank calls it, with a control group of host memory whose ranks become
  // this group's. It should have the same timeout. Blocks until all are there.
  //
  // Errors, beside those of Communicator's calls and the same on every rank:
  // kInvalidArgument for options that cannot be had; kFailedPrecondition where
  // ranks share a GPU in a way that NCCL cannot do (nccl_handle.h); what CUDA
  // and NCCL say. Sets environment variables if ranks share a GPU: no other
  // thread should use the environment then.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      std::unique_ptr<Communicator> control, const NcclOptions& options);

  // Waits for its calls to end, and at most a second for the other ranks to do
  // the same, so that NCCL can be left in health.
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  absl::Status Run(const Collective& call) override;
  absl::Status Wait() override;
  // Device memory. Faster than other with kDirect alone.
  absl::StatusOr<GroupBuffer> Allocate(
      int64_t bytes, CallSite site = CallSite::Here()) override;
  // Splits the control group, and makes new communicators on the same devices.
  // NCCL's kernels wait for each other on the GPU, so every rank must begin the
  // calls of both groups in one order: one thread should use them.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      int color, int key, CallSite site = CallSite::Here()) override;

  // Whether two ranks have one GPU: results are right, and times say nothing.
  bool shared_gpu() const { return shared_gpu_; }

 private:
  NcclCommunicator(const Communicator& control, const NcclOptions& options)
      : options_(options),
        rank_(control.rank()),
        world_size_(control.world_size()) {}

  absl::Status Join(std::unique_ptr<Communicator> control);
  absl::Status Prepare();
  absl::Status ReachPeers(Communicator& control);
  void CloseDirect();
  void Abort();
  absl::Status CheckArguments(const Collective& call) const;
  // Between two events, which put it in its place on the caller's stream.
  // is_direct: by direct_. capturing: whether the caller's stream is captured.
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
  bool shared_gpu_ = false;
  Stream stream_;
  // Outlives this in what a thread that was given up still does.
  const std::shared_ptr<NcclHandle> handle_ = std::make_shared<NcclHandle>();
  std::unique_ptr<GpuRing> ring_;
  std::unique_ptr<GpuDirect> direct_;
  std::unique_ptr<Watchdog> watchdog_;  // Last: its thread uses the others.
};

// Joins the `nccl` group of all ranks that a launcher started on this host. A
// rank has GPU number LOCAL_RANK modulo the number of GPUs that it sees, in
// place of options.device. Its control group is that of JoinLaunchedGroup, with
// options.group; for ranks on several hosts, give NcclCommunicator::Create one
// of JoinMpiGroup.
//
// Errors: kFailedPrecondition if no launcher started this process; kNotFound
// without a GPU; those of JoinLaunchedGroup and of NcclCommunicator::Create.
absl::StatusOr<std::unique_ptr<NcclCommunicator>> JoinNcclGroup(
    NcclOptions options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
