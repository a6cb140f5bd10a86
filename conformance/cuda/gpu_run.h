// Runs steps of data-parallel training whose ranks compute on GPUs, or on the
// stand-in's, and records them. A mutant is planted around the product's parts,
// never inside them.
#ifndef LOCKSTEP_CONFORMANCE_CUDA_GPU_RUN_H_
#define LOCKSTEP_CONFORMANCE_CUDA_GPU_RUN_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/network/network_run.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/cuda_replica.h"
#include "models/cuda/loss_scale.h"
#include "models/cuda/precision.h"
#include "models/model.h"
#include "models/train/gpu_test_rank.h"

namespace lockstep::conformance {

// Returns LeNet on images of 16x16 pixels, with batches for a hundred steps.
const TestedNetwork& TestedLeNet();

// The first step that is a graph: NCCL connects its ranks in its first calls.
inline constexpr int kFirstGraph = 2;

// The batches that a rank has memory for.
inline constexpr int kBuffers = 3;

// The order in which the stand-in's streams run their work. On a GPU, the order
// is the GPU's.
enum class StreamOrder { kAtOnce, kOldestFirst, kNewestFirst };

struct GpuRun {
  std::vector<int64_t> deal = {4, 4};  // As in NetworkRun.
  int steps = 1;
  ConvolutionPrecision precision = ConvolutionPrecision::kFloat32;
  // Whether steps from kFirstGraph on are graphs (StepGraphs).
  bool graphs = false;
  int64_t bucket_bytes = 4096;
  // The step in which a pixel of the last sample is beyond float16; -1: none.
  int huge_step = -1;
  StreamOrder order = StreamOrder::kAtOnce;
  const TestedNetwork* tested = &TestedLeNet();

  int world_size() const { return static_cast<int>(deal.size()); }
  // Returns the run that CheckNetwork knows.
  NetworkRun network() const;
  // Returns, for example, "lenetP2Deal4x4Float32GraphsOrder0Bucket4096".
  std::string name() const;
};

// Prints the name, for messages of tests.
void PrintTo(const GpuRun& run, std::ostream* out);

// A rank's numbers, in the host's order of parameters.
struct GpuRankTrace {
  std::vector<std::vector<float>> parameters;  // steps + 1.
  // Indexed by step: the gradients after the step. If the update waits for the
  // sums, it used these.
  std::vector<std::vector<float>> gradients;
  // Indexed by step: the rank's gradients when the sum over the ranks read
  // them. For float16 they hold the loss scale as a factor.
  std::vector<std::vector<float>> read;
  // The calls that sum gradients: each sums these parameters, from the first to
  // before the second.
  std::set<std::pair<int, int>> buckets;
  std::vector<LossScale> scales;  // steps + 1.
};

struct GpuTrace {
  NetworkTrace network;
  std::vector<GpuRankTrace> ranks;
};

// How one rank connects the product's parts. Every default is right; a mutant
// overrides one or more. Hooks only enqueue work, unless they say otherwise.
class RankWiring {
 public:
  virtual ~RankWiring() = default;

  // Changes the options of the rank's replica. Called first.
  virtual void Choose(int /*rank*/, CudaReplicaOptions&) {}
  // Called before the functions below. parts: borrowed. The parameters
  // are the rank's own, before rank 0's are broadcast.
  virtual absl::Status Begin(GpuTestRank& parts, int rank);
  // Returns the stream that GpuSteps takes for that of the gradients' group.
  virtual cudaStream_t JoinedStream() { return parts_->communication.get(); }
  // Returns the batch that the rank copies to the GPU.
  virtual Batch BatchOf(const Batch& right) { return right; }
  // Returns the buffer for a step's batch: 0, 1 or 2.
  virtual int BufferOf(int step) { return step % kBuffers; }
  // Returns the batch in device memory that the step computes.
  virtual DeviceBatch ShardOf(int /*step*/, const DeviceBatch& right) {
    return right;
  }
  // Called before and after the step is enqueued.
  virtual absl::Status Before(int /*step*/) { return absl::OkStatus(); }
  virtual absl::Status After(int /*step*/) { return absl::OkStatus(); }
  // Makes a call of the gradients' group.
  virtual absl::Status Run(Communicator& group, const Collective& call) {
    return group.Run(call);
  }

 protected:
  GpuTestRank& parts() { return *parts_; }
  int rank() const { return rank_; }

 private:
  GpuTestRank* parts_ = nullptr;
  int rank_ = 0;
};

// Returns a rank's wiring; null: RankWiring itself.
using Wiring = std::function<std::unique_ptr<RankWiring>()>;

// Takes the steps, each rank on the GPU of its number. The stand-in has as many
// GPUs as there are ranks; otherwise the host must have them. Every rank starts
// with its own parameters, which rank 0's replace. A batch is copied to the GPU
// one step ahead. Must not be called while another thread uses the stand-in.
// Errors: the first rank's, with its number.
absl::StatusOr<GpuTrace> RunOnGpus(const GpuRun& run,
                                   const Wiring& wiring = nullptr);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CUDA_GPU_RUN_H_
