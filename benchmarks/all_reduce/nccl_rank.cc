#include "benchmarks/all_reduce/nccl_rank.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rounds.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/gpu_sharing.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/watchdog.h"

namespace lockstep::benchmarks {
namespace {

bool IsFloat(DataType type) {
  return type != DataType::kInt32 && type != DataType::kInt64 &&
         type != DataType::kUInt8;
}

// A communicator that calls NCCL directly. Run only enqueues a call on the
// stream.
class PlainNccl : public PeerCommunicator {
 public:
  // Collective. control: a group of the same ranks in host memory.
  static absl::StatusOr<std::unique_ptr<PlainNccl>> Create(
      std::unique_ptr<Communicator> control, const Team& team, int device,
      cudaStream_t stream) {
    std::unique_ptr<PlainNccl> nccl(
        new PlainNccl(std::move(control), team, stream));
    LOCKSTEP_RETURN_IF_ERROR(nccl->Join(device));
    return nccl;
  }

  ~PlainNccl() override { handle_.Destroy(GroupOptions().timeout); }

  int rank() const override { return control_->rank(); }
  int world_size() const override { return control_->world_size(); }
  bool shared_gpu() const { return shared_gpu_; }

  absl::Status Run(const Collective& call) override {
    if (call.operation == Operation::kBarrier) {
      return control_->Barrier();
    }
    if (call.operation == Operation::kAllToAll && algorithm_set_) {
      return absl::UnimplementedError(
          "NCCL_ALGO has no effect on all_to_all, which is sends and receives");
    }
    if (Reduces(call.operation) && call.op == ReduceOp::kAverage &&
        !IsFloat(call.input.type)) {
      return absl::UnimplementedError("NCCL's averages of integers wrap");
    }
    const absl::Status issued = Issue(call);
    return issued.ok() ? issued : Check(Named(Name(call.operation), issued));
  }

  absl::Status Wait() override {
    return Check(
        CudaStatus(cudaStreamSynchronize(stream_), "waiting for NCCL's calls"));
  }

 private:
  PlainNccl(std::unique_ptr<Communicator> control, const Team& team,
            cudaStream_t stream)
      : control_(std::move(control)),
        algorithm_set_(team.algorithm != Algorithm::kAuto),
        stream_(stream) {}

  absl::Status Join(int device) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        shared_gpu_, ShareGpus(*control_, device, /*own=*/absl::OkStatus()));
    NcclSetup setup;
    LOCKSTEP_RETURN_IF_ERROR(ExchangeSetup(*control_, setup));
    return handle_.Init(*control_, setup.id, device, GroupOptions().timeout);
  }

  // Aborts all calls under way if `status` is an error, because memory cannot
  // be freed before they end.
  absl::Status Check(absl::Status status) {
    if (!status.ok()) handle_.Abort();
    return status;
  }

  absl::Status Issue(const Collective& call) {
    if (call.operation == Operation::kAllToAll) return IssueAllToAll(call);
    return handle_.Call([&](ncclComm_t comm) {
      return IssueNative(call, rank(), comm, stream_);
    });
  }

  // Issues grouped sends and receives, as programs do that do not use
  // ncclAlltoAll, which is new in NCCL 2.28.
  absl::Status IssueAllToAll(const Collective& call) {
    const int64_t part = call.input.count / world_size();
    return handle_.Group([&] {
      ncclResult_t result = ncclSuccess;
      for (int peer = 0; peer < world_size() && result == ncclSuccess; ++peer) {
        const int64_t begin = peer * part;
        result = handle_.Send(call.input.Part(begin, part), peer, stream_);
        if (result != ncclSuccess) break;
        result = handle_.Receive(call.output.Part(begin, part), peer, stream_);
      }
      return result;
    });
  }

  const std::unique_ptr<Communicator> control_;
  const bool algorithm_set_;
  const cudaStream_t stream_;
  bool shared_gpu_ = false;
  NcclHandle handle_;
};

// Returns the variables of this process that NCCL reads.
std::vector<std::string> NcclEnvironment() {
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    if (!absl::StartsWith(*each, "NCCL_")) continue;
    // The command itself sets these, for the log that it reads.
    if (absl::StartsWith(*each, "NCCL_DEBUG")) continue;
    variables.emplace_back(*each);
  }
  std::ranges::sort(variables);
  return variables;
}

class NcclTurnTaker : public TurnTaker {
 public:
  // The group's calls are ordered by `stream`: a call starts after the work
  // enqueued before it, and later work starts after the call.
  NcclTurnTaker(std::unique_ptr<Communicator> group,
                Communicator& barrier_group, Stream stream)
      : TurnTaker(*group, barrier_group),
        stream_(std::move(stream)),
        owned_group_(std::move(group)) {}

  // Must be called before all other functions.
  absl::Status Prepare(int device, bool shared_gpu, bool direct) {
    cudaDeviceProp properties;
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaGetDeviceProperties(&properties, device),
                   "asking for the GPU's name"));
    gpu_ = properties.name;
    shared_gpu_ = shared_gpu;
    direct_ = direct;
    LOCKSTEP_ASSIGN_OR_RETURN(begin_, MakeTimedEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(end_, MakeTimedEvent());
    return absl::OkStatus();
  }

 protected:
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateOrdinary(
      int64_t bytes) override {
    LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory,
                              RequireOnAllRanks(AllocateDeviceMemory(bytes)));
    return std::shared_ptr<std::byte>(std::move(memory));
  }

  absl::StatusOr<std::byte*> HostMemoryFor(std::byte*, int64_t bytes) override {
    if (host_bytes_ < bytes) {
      host_.reset();
      host_bytes_ = 0;
      LOCKSTEP_ASSIGN_OR_RETURN(host_,
                                RequireOnAllRanks(AllocateAligned(bytes)));
      host_bytes_ = bytes;
    }
    return host_.get();
  }

  absl::Status Upload(std::byte* to, const std::byte* from,
                      int64_t bytes) override {
    return Copy(to, from, bytes, cudaMemcpyHostToDevice,
                "copying inputs to the GPU");
  }
  absl::Status Download(std::byte* to, const std::byte* from,
                        int64_t bytes) override {
    return Copy(to, from, bytes, cudaMemcpyDeviceToHost,
                "copying answers from the GPU");
  }

  int extra_buffers() const override { return 1; }

  absl::StatusOr<AllReduceTurn> Time(const TurnRequest& request,
                                     CallFunction call) override {
    // The GPU was idle while buffers were filled. These calls are not timed.
    // They keep the GPU busy until the first timed call is enqueued.
    for (int i = 0; i < request.iterations; ++i) {
      LOCKSTEP_RETURN_IF_ERROR(call(request.iterations));
    }
    LOCKSTEP_RETURN_IF_ERROR(Record(begin_));
    const double begin = SteadySeconds();
    for (int i = 0; i < request.iterations; ++i) {
      LOCKSTEP_RETURN_IF_ERROR(call(i));
    }
    const double enqueued = SteadySeconds();
    LOCKSTEP_RETURN_IF_ERROR(Record(end_));
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaEventSynchronize(end_.get()), "waiting for the calls"));
    float milliseconds = 0;
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
        cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()),
        "reading the events"));
    AllReduceTurn turn;
    turn.calls.seconds = {1e-3 * static_cast<double>(milliseconds) /
                          request.iterations};
    turn.host_seconds = (enqueued - begin) / request.iterations;
    return turn;
  }

  void Describe(AllReduceTurn& turn) const override {
    turn.gpu = gpu_;
    turn.shared_gpu = shared_gpu_ ? 1 : 0;
    turn.direct = direct_ ? 1 : 0;
    turn.nccl_environment = NcclEnvironment();
  }

 private:
  absl::Status Record(const Event& event) const {
    return CudaStatus(cudaEventRecord(event.get(), stream_.get()),
                      "recording an event");
  }

  // Returns `made` if every rank made its own; otherwise an error on all ranks,
  // because ranks would wait for the calls of a rank without it.
  template <typename T>
  absl::StatusOr<T> RequireOnAllRanks(absl::StatusOr<T> made) {
    LOCKSTEP_RETURN_IF_ERROR(ShareStatus(barrier_group(), made.status()));
    return made;
  }

  absl::Status Copy(void* to, const void* from, int64_t bytes,
                    cudaMemcpyKind kind, const char* what) {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind,
                                   stream_.get()),
                   what));
    return CudaStatus(cudaStreamSynchronize(stream_.get()), what);
  }

  Stream stream_;
  Event begin_, end_;
  std::string gpu_;  // The GPU's name.
  bool shared_gpu_ = false;
  bool direct_ = false;
  // Destroyed before the stream and the memory of the calls. Freeing memory
  // waits for calls under way, and destroying the group ends these calls.
  const std::unique_ptr<Communicator> owned_group_;
  AlignedMemory host_;
  int64_t host_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TurnTaker>> CreateNcclRank(Communicator& host,
                                                          const Team& team,
                                                          int local_rank) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int device, DeviceOfRank(local_rank));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(device), "choosing the GPU"));
  LOCKSTEP_ASSIGN_OR_RETURN(Stream stream, MakeStream());
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> control,
                            host.Split(0, 0));
  std::unique_ptr<Communicator> group;
  bool shared_gpu = false;
  bool direct = false;
  if (team.kind == TeamKind::kPlainNccl) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        auto nccl,
        PlainNccl::Create(std::move(control), team, device, stream.get()));
    shared_gpu = nccl->shared_gpu();
    group = std::move(nccl);
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(
        auto nccl,
        NcclCommunicator::Create(std::move(control),
                                 {.device = device,
                                  .stream = stream.get(),
                                  .group = {.algorithm = team.algorithm}}));
    shared_gpu = nccl->shared_gpu();
    direct = nccl->is_direct();
    group = std::move(nccl);
  }
  auto taker = std::make_unique<NcclTurnTaker>(std::move(group), host,
                                               std::move(stream));
  LOCKSTEP_RETURN_IF_ERROR(taker->Prepare(device, shared_gpu, direct));
  return taker;
}

}  // namespace lockstep::benchmarks
