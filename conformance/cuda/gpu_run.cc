#include "conformance/cuda/gpu_run.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/watchdog.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/network/network_run.h"
#include "conformance/training/trace.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/cuda_replica.h"
#include "models/cuda/precision.h"
#include "models/cuda/weight_layout.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/train/gpu_steps.h"
#include "models/train/gpu_test_rank.h"
#include "models/train/step_graphs.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "standin/control.h"
#endif

namespace lockstep::conformance {
namespace {

// A group whose calls the wiring makes on a group of device memory.
class WiredGroup : public ForwardingCommunicator {
 public:
  WiredGroup(Communicator& inner, RankWiring& wiring)
      : ForwardingCommunicator(inner), wiring_(wiring) {}
  bool enqueues() const override { return true; }
  absl::Status Run(const Collective& call) override {
    return wiring_.Run(inner(), call);
  }

 private:
  RankWiring& wiring_;
};

// A group that copies the gradients, in device memory, when a sum reads them,
// and records which parameters each call sums.
class CopyingGroup : public ForwardingCommunicator {
 public:
  CopyingGroup(GpuTestRank& parts, float* copy)
      : ForwardingCommunicator(*parts.gradients), parts_(parts), copy_(copy) {}
  bool enqueues() const override { return true; }
  absl::Status Run(const Collective& call) override {
    if (call.operation == Operation::kAllReduce) {
      const auto* const from = static_cast<const float*>(call.input.data);
      const ptrdiff_t offset =
          from - parts_.replica->parameters().gradients().data();
      buckets_.insert(ParametersIn(offset, offset + call.input.count));
      LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
          cudaMemcpyAsync(copy_ + offset, from,
                          call.input.count * sizeof(float),
                          cudaMemcpyDeviceToDevice, parts_.communication.get()),
          "cudaMemcpyAsync"));
    }
    return inner().Run(call);
  }
  const std::set<std::pair<int, int>>& buckets() const { return buckets_; }

 private:
  std::pair<int, int> ParametersIn(int64_t begin, int64_t end) const {
    const std::vector<ParameterSpec>& specs =
        parts_.replica->parameters().specs();
    const auto index = [&](int64_t offset) {
      return static_cast<int>(
          std::ranges::lower_bound(specs, offset, {}, &ParameterSpec::offset) -
          specs.begin());
    };
    return {index(begin), index(end)};
  }

  GpuTestRank& parts_;
  float* const copy_;
  std::set<std::pair<int, int>> buckets_;
};

// Returns seeds for a hundred steps, in each of which LeNet has no ReLU input
// and no maximum in doubt (Clearance).
std::vector<uint32_t> BatchSeeds() {
  constexpr uint32_t kInDoubt[] = {4, 13, 27, 35, 40, 56, 70, 79};
  std::vector<uint32_t> seeds;
  for (uint32_t seed = 1; seeds.size() < 100; ++seed) {
    if (std::ranges::count(kInDoubt, seed) == 0) seeds.push_back(seed);
  }
  return seeds;
}

// Gives the stand-in the run's GPUs and order of streams, until it is
// destroyed.
class StandinGpus {
 public:
#ifdef LOCKSTEP_CUDA_STANDIN
  explicit StandinGpus(const GpuRun& run) {
    constexpr standin::Order kOrders[] = {standin::Order::kAtOnce,
                                          standin::Order::kOldestStreamFirst,
                                          standin::Order::kNewestStreamFirst};
    standin::SetDevices({.count = run.world_size()});
    standin::SetSchedule({.order = kOrders[static_cast<size_t>(run.order)]});
  }
  ~StandinGpus() {
    standin::SetSchedule({});
    standin::SetDevices({});
  }
#else
  explicit StandinGpus(const GpuRun&) {}
#endif
  StandinGpus(const StandinGpus&) = delete;
  StandinGpus& operator=(const StandinGpus&) = delete;
};

// One rank of a run.
class Rank {
 public:
  Rank(const GpuRun& run, const Wiring& wiring, int rank)
      : run_(run),
        rank_(rank),
        wiring_(wiring ? wiring() : std::make_unique<RankWiring>()),
        host_(CreateParameters(network())),
        host_buffers_(CreateBuffers(network())) {}

  absl::Status Create(Communicator& control);
  absl::Status Train(std::vector<RankMoment>& moments, GpuRankTrace& trace,
                     RankTrace* full);

 private:
  struct Buffer {
    BatchCopy copy;
    Event copied;
  };

  const Network& network() const { return run_.tested->network(); }
  bool is_graph(int step) const { return run_.graphs && step >= kFirstGraph; }
  absl::Status CreateSteps();
  absl::Status FillStart();
  // Enqueues the copy of a step's batch to its buffer.
  absl::Status Copy(int step);
  absl::Status TakeStep(int step);
  absl::Status Record(int step, std::vector<RankMoment>& moments,
                      GpuRankTrace& trace, RankTrace* full);
  // Returns the gradients that the step's sums have read.
  absl::StatusOr<std::vector<float>> ReadGradients();

  const GpuRun& run_;
  const int rank_;
  const std::unique_ptr<RankWiring> wiring_;
  Parameters host_;
  Buffers host_buffers_;
  // The groups end before the memory that their calls use is freed.
  std::array<Buffer, kBuffers> buffers_;
  std::array<Event, 4> times_;
  DeviceMemory read_;
  Stream copy_stream_;
  GpuTestRank parts_;
  std::unique_ptr<CopyingGroup> copying_;
  std::unique_ptr<WiredGroup> group_;
  std::unique_ptr<GpuSteps> steps_;
  std::unique_ptr<StepGraphs> graphs_;
  std::vector<DeviceBatch> batches_;  // By step.
};

absl::Status Rank::Create(Communicator& control) {
  CudaReplicaOptions options = {.precision = run_.precision};
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(rank_), "cudaSetDevice"));
  LOCKSTEP_ASSIGN_OR_RETURN(copy_stream_, MakeStream());
  for (Buffer& buffer : buffers_) {
    LOCKSTEP_ASSIGN_OR_RETURN(buffer.copied, MakeEvent());
    LOCKSTEP_RETURN_IF_ERROR(
        buffer.copy.Reserve(kNetworkBatchSize, network().input_shape()));
  }
  for (Event& event : times_) {
    LOCKSTEP_ASSIGN_OR_RETURN(event, MakeTimedEvent());
  }
  wiring_->Choose(rank_, options);
  LOCKSTEP_ASSIGN_OR_RETURN(parts_,
                            CreateGpuTestRank(control, network(), options));
  LOCKSTEP_RETURN_IF_ERROR(parts_.replica->WarmUp(
      run_.deal[static_cast<size_t>(rank_)], buffers_[0].copy));
  LOCKSTEP_RETURN_IF_ERROR(FillStart());
  LOCKSTEP_RETURN_IF_ERROR(wiring_->Begin(parts_, rank_));
  return CreateSteps();
}

absl::Status Rank::CreateSteps() {
  const auto bytes = static_cast<int64_t>(
      parts_.replica->parameters().gradients().size_bytes());
  LOCKSTEP_ASSIGN_OR_RETURN(read_, AllocateDeviceMemory(bytes));
  copying_ = std::make_unique<CopyingGroup>(
      parts_, reinterpret_cast<float*>(read_.get()));
  group_ = std::make_unique<WiredGroup>(*copying_, *wiring_);
  LOCKSTEP_ASSIGN_OR_RETURN(
      steps_, GpuSteps::Create(*parts_.replica, *group_,
                               {.compute = parts_.compute.get(),
                                .communication = wiring_->JoinedStream()},
                               run_.bucket_bytes));
  graphs_ = std::make_unique<StepGraphs>(StepGraphs::Rank{
      .steps = steps_.get(),
      .replica = parts_.replica.get(),
      .compute = parts_.compute.get(),
      .gradients = run_.world_size() > 1 ? parts_.gradients.get() : nullptr});
  return absl::OkStatus();
}

absl::Status Rank::FillStart() {
  FillNetworkStart(*run_.tested, rank_, host_, host_buffers_);
  return parts_.replica->Upload(host_, host_buffers_);
}

absl::Status Rank::Copy(int step) {
  Samples samples = run_.tested->StepBatch(step);
  if (step == run_.huge_step) samples.images.back() = 1e6f;
  const Batch right = ShardOf(samples, run_.network(), rank_, step);
  Buffer& buffer = buffers_[wiring_->BufferOf(step)];
  LOCKSTEP_ASSIGN_OR_RETURN(
      const DeviceBatch batch,
      buffer.copy.Enqueue(wiring_->BatchOf(right), kNetworkLearningRate,
                          copy_stream_.get()));
  batches_.push_back(batch);
  return CudaStatus(cudaEventRecord(buffer.copied.get(), copy_stream_.get()),
                    "cudaEventRecord");
}

absl::Status Rank::TakeStep(int step) {
  if (step + 1 < run_.steps) LOCKSTEP_RETURN_IF_ERROR(Copy(step + 1));
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaStreamWaitEvent(parts_.compute.get(),
                          buffers_[wiring_->BufferOf(step)].copied.get(), 0),
      "cudaStreamWaitEvent"));
  LOCKSTEP_RETURN_IF_ERROR(wiring_->Before(step));
  const DeviceBatch shard = wiring_->ShardOf(step, batches_[step]);
  const GpuStepEvents events = {.begin = times_[0].get(),
                                .computed = times_[1].get(),
                                .summed = times_[2].get(),
                                .end = times_[3].get()};
  LOCKSTEP_RETURN_IF_ERROR(
      is_graph(step) ? graphs_->Enqueue(shard, kNetworkBatchSize, events)
                     : steps_->Enqueue(shard, kNetworkBatchSize, events));
  return wiring_->After(step);
}

absl::StatusOr<std::vector<float>> Rank::ReadGradients() {
  const Parameters& parameters = parts_.replica->parameters();
  const std::span<const float> all = parameters.gradients();
  std::vector<float> on_gpu(all.size());
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpy(on_gpu.data(), read_.get(), all.size_bytes(),
                            cudaMemcpyDeviceToHost),
                 "cudaMemcpy"));
  const std::vector<WeightLayout> layouts = WeightLayoutsOf(network());
  std::vector<float> read(host_.values().size());
  for (int i = 0; i < host_.count(); ++i) {
    ToHostOrder(layouts[i],
                parameters.specs()[i].Part(std::span<const float>(on_gpu)),
                host_.specs()[i].Part(std::span(read)));
  }
  return read;
}

absl::Status Rank::Record(int step, std::vector<RankMoment>& moments,
                          GpuRankTrace& trace, RankTrace* full) {
  // Waits for the sums, then for the rest of the step.
  LOCKSTEP_RETURN_IF_ERROR(parts_.gradients->Wait());
  CudaReplica& replica = *parts_.replica;
  LOCKSTEP_RETURN_IF_ERROR(replica.Download(host_, host_buffers_));
  LOCKSTEP_RETURN_IF_ERROR(replica.DownloadGradients(host_));
  LOCKSTEP_ASSIGN_OR_RETURN(trace.scales.emplace_back(),
                            replica.DownloadLossScale());
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, replica.TakeMetrics());
  RecordMoment(*run_.tested, host_, host_buffers_, step, metrics.loss_sum,
               moments, full);
  const std::span<const float> values = host_.values();
  trace.parameters.emplace_back(values.begin(), values.end());
  if (step < 0) return absl::OkStatus();
  const std::span<const float> gradients = host_.gradients();
  trace.gradients.emplace_back(gradients.begin(), gradients.end());
  if (run_.world_size() == 1) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(trace.read.emplace_back(), ReadGradients());
  return absl::OkStatus();
}

absl::Status Rank::Train(std::vector<RankMoment>& moments, GpuRankTrace& trace,
                         RankTrace* full) {
  LOCKSTEP_RETURN_IF_ERROR(
      group_->Broadcast(parts_.replica->parameters().values(), /*root=*/0));
  LOCKSTEP_RETURN_IF_ERROR(Record(-1, moments, trace, full));
  LOCKSTEP_RETURN_IF_ERROR(Copy(0));
  for (int step = 0; step < run_.steps; ++step) {
    LOCKSTEP_RETURN_IF_ERROR(TakeStep(step));
    LOCKSTEP_RETURN_IF_ERROR(Record(step, moments, trace, full));
  }
  trace.buckets = copying_->buckets();
  return absl::OkStatus();
}

}  // namespace

const TestedNetwork& TestedLeNet() {
  static const auto& tested =
      *new TestedNetwork("lenet", {1, 16, 16, 4}, BatchSeeds());
  return tested;
}

NetworkRun GpuRun::network() const {
  return {.deal = deal,
          .steps = steps,
          .type = TypeOf(precision),
          .tested = tested};
}

std::string GpuRun::name() const {
  std::string type = Name(precision);
  type[0] = static_cast<char>(type[0] - 'a' + 'A');
  return absl::StrCat(network().name(), type, graphs ? "Graphs" : "",
                      huge_step >= 0 ? "Overflow" : "", "Order",
                      static_cast<int>(order), "Bucket", bucket_bytes);
}

void PrintTo(const GpuRun& run, std::ostream* out) { *out << run.name(); }

absl::Status RankWiring::Begin(GpuTestRank& parts, int rank) {
  parts_ = &parts;
  rank_ = rank;
  return absl::OkStatus();
}

absl::StatusOr<GpuTrace> RunOnGpus(const GpuRun& run, const Wiring& wiring) {
  GpuTrace trace;
  trace.network.ranks.resize(run.deal.size());
  trace.ranks.resize(run.deal.size());
  const StandinGpus gpus(run);
  const auto train = [&](Communicator& control) -> absl::Status {
    const int rank = control.rank();
    Rank own(run, wiring, rank);
    // Every rank waits until all have allocated and loaded what they need: CUDA
    // may not do so beside another rank's kernels of NCCL.
    LOCKSTEP_RETURN_IF_ERROR(ShareStatus(control, own.Create(control)));
    return own.Train(trace.network.ranks[rank], trace.ranks[rank],
                     rank == 0 ? &trace.network.first : nullptr);
  };
  const std::vector<absl::Status> statuses =
      RunRanks(Backend::kThreads, run.world_size(), train);
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    if (statuses[rank].ok()) continue;
    return absl::Status(statuses[rank].code(),
                        absl::StrCat("rank ", rank, ": ",
                                     std::string(statuses[rank].message())));
  }
  return trace;
}

}  // namespace lockstep::conformance
