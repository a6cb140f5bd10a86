// The `nccl` backend: ranks with a GPU each, or several on one. In programs
// that are linked with this, CreateGroup("nccl") is JoinNcclGroup().
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/gpu_ring.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/peers.h"

namespace lockstep {

struct NcclOptions {
  // Of this rank, as cudaSetDevice takes it.
  int device = 0;

  // Every call starts after what this stream of the device holds by then. By
  // default the legacy default stream.
  cudaStream_t stream = nullptr;

  // timeout: how long a call, or joining the group, may last.
  // algorithm: how AllReduce, Reduce and ReduceScatter go about it. kAuto: by
  // NCCL's own reductions where they mean what collective.h says
  // (nccl_handle.h), in NCCL's order of additions; elsewhere as kRing. kRing:
  // our ring, in the order of additions of algorithms/schedule.h (ring). kTree
  // and kDirect are not to be had. slot_bytes is not used. Rank 0's algorithm,
  // and its values of what follows, hold for the group.
  GroupOptions group;

  // With kAuto: NCCL's own reductions for every type and operation.
  bool nccl_arithmetic = false;

  // What our ring moves at once: a multiple of 16. A message of NCCL costs
  // about as much time as a quarter of the default does on the way.
  int64_t chunk_bytes = 4 << 20;

  // Whether ranks compare their calls before any data moves, and tell each
  // other how they go. Costs a small all-gather of the control group before and
  // one after each call. Without, a disagreement or a lost rank is found at the
  // deadline, and a rank must not leave before all have ended their last call.
  bool check_calls = true;
};

// Buffers are device or managed memory of the rank's device; those of
// reductions are aligned to their elements (others need not be). Run sets the
// calling thread's current device.
//
// NCCL never blocks here: the communicator is non-blocking, this rank polls it
// and the stream, and every 5 ms hears from the others over the control group
// how they fare. On an error of NCCL or of CUDA on any rank, when a rank is
// gone, and when a call has lasted the timeout, every rank aborts its
// communicator and returns the same error.
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

  ~NcclCommunicator() override;

  int rank() const override { return peers_.rank(); }
  int world_size() const override { return peers_.world_size(); }
  absl::Status Run(const Collective& call) override;
  // Device memory. Not faster than other.
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
  NcclCommunicator(std::unique_ptr<Communicator> control,
                   const NcclOptions& options)
      : options_(options), peers_(std::move(control)) {}

  absl::Status Join();
  absl::Status Prepare();
  absl::Status Fail(const absl::Status& cause);
  absl::Status CheckUsable(const Call& call) const;
  absl::Status CheckArguments(const Collective& call) const;
  absl::Status RunUnfailed(const Collective& collective, const Call& call);
  absl::Status Move(const Collective& call, CallProgress& progress);
  absl::Status Enqueue(const Collective& call, CallProgress& progress);
  bool UsesRing(const Collective& call) const;
  absl::StatusOr<bool> Done() const;
  CallProgress Begin(const Call& call);

  NcclOptions options_;
  Peers peers_;
  bool shared_gpu_ = false;
  absl::Status failure_;
  Stream stream_;
  Event before_;  // On options_.stream.
  Event done_;    // On stream_.
  NcclHandle handle_;
  std::optional<GpuRing> ring_;
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
