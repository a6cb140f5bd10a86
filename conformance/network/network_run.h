// Networks for the checks of whole networks, with their own parameters, buffers
// and batches. Runs steps of data-parallel training on N ranks with the
// product's code. Hooks plant a mutant around the product, never inside it.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_RUN_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/rank_bytes.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "models/cpu/algorithm.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/reference/network_reference.h"
#include "models/train/data_parallel.h"

namespace lockstep::conformance {

inline constexpr int64_t kNetworkBatchSize = 8;  // Global.
inline constexpr float kNetworkLearningRate = 0.02f;

// A network, its initial values (RandomParameters, RandomRunning), and the
// global batches of its steps.
class TestedNetwork {
 public:
  // batch_seeds: one seed for each step that may be taken. With these seeds, on
  // the way from the start, no ReLU input and no maximum is in doubt
  // (Clearance).
  TestedNetwork(std::string spec, const NetworkInput& input,
                std::vector<uint32_t> batch_seeds,
                ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kAuto);

  const std::string& spec() const { return spec_; }
  // Whether the product uses Winograd's algorithm in every convolution that it
  // can.
  bool is_winograd() const {
    return convolution_ == ConvolutionAlgorithm::kWinograd;
  }
  // Returns the convolutions that the product computes by Winograd's algorithm,
  // so that float32 loops can round in the same way.
  WinogradRule winograd_rule() const;
  // Returns the network's name in the names of tests: "resnet18d2l",
  // "resnet18d2lWinograd".
  std::string name() const;
  const NetworkInput& input() const { return input_; }
  const Network& network() const { return network_; }
  int steps() const { return static_cast<int>(batch_seeds_.size()); }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  // The buffers of float32, without num_batches_tracked.
  const std::vector<BufferSpec>& buffer_specs() const { return buffer_specs_; }
  bool IsNorm(const ParameterSpec& spec) const;
  bool HasZeroGradient(const ParameterSpec& spec) const;

  std::unique_ptr<Model> CreateModel() const;
  std::vector<float> Parameters(uint32_t seed) const;
  std::vector<float> Running(uint32_t seed) const;
  Samples Batch(uint32_t seed, int64_t n) const;
  Samples StepBatch(int step) const;

  // Rank 0's initial values: Parameters(1), computed once.
  const std::vector<float>& start() const { return start_; }

 private:
  int IndexOf(const ParameterSpec& spec) const;

  const std::string spec_;
  const NetworkInput input_;
  const std::vector<uint32_t> batch_seeds_;
  const ConvolutionAlgorithm convolution_;
  const Network network_;
  std::vector<ParameterSpec> specs_;
  std::vector<BufferSpec> buffer_specs_;
  std::vector<float> start_;
};

// Returns ResNet-18 of the d2l chapter on images of 10 -> 5 -> 3 -> 2 pixels:
// odd sizes under strides, and every tap of every kernel meets a pixel. An
// exhaustive run (base/slice.h) uses ResNet-18 itself. Other runs use a quarter
// of its width with the same layers, so that a step costs a sixteenth.
const TestedNetwork& TestedResNet();

// Returns ResNet-18 of the d2l chapter, a quarter as wide, whose 3x3
// convolutions at stride 1 use Winograd's algorithm. Null if oneDNN has no
// Winograd.
const TestedNetwork* TestedWinogradResNet();

// Returns a small vision transformer with dropout of every kind.
const TestedNetwork& TestedVit();
// Has no dropout in its attention, which cuDNN's fused kernels compute in 16
// bits.
const TestedNetwork& TestedFusedVit();

// Returns torchvision's ResNet-18, an eighth as wide, on images of 33 pixels.
const TestedNetwork& TestedTorchvisionResNet();

// Returns torchvision's ResNet-50, an eighth as wide, on such images.
const TestedNetwork& TestedResNet50();

// Returns all of these networks, and small ones of every other network.
const std::vector<const TestedNetwork*>& AllTestedNetworks();

// The keys of random masks, in addition to samples' numbers in their global
// batch.
inline constexpr uint64_t kMaskSeed = 5;

// Returns the masks of a step.
KeepMask MaskOf(int step);

struct NetworkRun {
  // The number of samples that each rank gets of each global batch, in the
  // batch's order. These world_size numbers add up to kNetworkBatchSize.
  std::vector<int64_t> deal = {4, 4};
  int steps = 2;
  bool sync_bn = true;
  int64_t bucket_bytes = 0;  // 0: GradientReducer::DefaultBucketBytes.
  // The timeout of every wait for a rank.
  absl::Duration timeout = absl::Seconds(60);
  RankRunner ranks = nullptr;  // Runs the ranks in place of threads.
  // Creates a rank's model in place of TestedNetwork::CreateModel.
  std::function<std::unique_ptr<Model>(const Network&)> model = nullptr;
  // The type in which that model stores activations.
  DataType type = DataType::kFloat32;
  const TestedNetwork* tested = &TestedResNet();

  int world_size() const { return static_cast<int>(deal.size()); }
  // Returns, for example, "vitP4Deal3x0x5x0".
  std::string name() const;
};

// Prints the name, for messages of tests.
void PrintTo(const NetworkRun& run, std::ostream* out);

// Three ways to deal the batch: as even as possible, uneven, and with an empty
// share for some rank.
struct NetworkDeal {
  std::vector<int64_t> even, uneven, empty;
};

// Returns the shares of 2, 3 and 4 ranks.
const std::vector<NetworkDeal>& NetworkDeals();

// A rank's values at the start (moment 0) and after each step. Large tensors
// are kept as digests of their bits.
struct RankMoment {
  double loss_sum = 0;  // The loss of its shard in this step; 0 at the start.
  std::vector<uint64_t> parameters, gradients;  // Indexed by tensor.
  std::vector<float> running;
  std::vector<int64_t> batches;  // num_batches_tracked.
};

struct NetworkTrace {
  RankTrace first;  // Rank 0's; its samples are the global batches.
  std::vector<std::vector<RankMoment>> ranks;  // [rank][steps + 1].
};

// Returns a rank's part of the global batch of a step, which it borrows.
Batch ShardOf(const Samples& samples, const NetworkRun& run, int rank,
              int step);

// Fills host memory with the initial parameters and buffers of the rank, which
// differ between ranks. Rank 0's are start(), Running(1) and counters of 0.
void FillNetworkStart(const TestedNetwork& tested, int rank,
                      Parameters& parameters, Buffers& buffers);

// Appends a rank's values after a step, or at the start (step -1), from host
// memory. full: where rank 0 keeps the values themselves, or null.
void RecordMoment(const TestedNetwork& tested, const Parameters& parameters,
                  const Buffers& buffers, int step, double loss_sum,
                  std::vector<RankMoment>& moments, RankTrace* full);

// Runs the steps. Every rank starts with its own parameters and buffers, which
// the product replaces with rank 0's. Uses only the mutation's group, from
// which batch norm's group is split off, and its model. Errors: the first
// rank's, with its number.
absl::StatusOr<NetworkTrace> RunNetwork(const NetworkRun& run,
                                        const Mutation& mutation);

// Runs the steps likewise, and returns every rank's status.
std::vector<absl::Status> RunNetworkRanks(const NetworkRun& run,
                                          const Mutation& mutation,
                                          NetworkTrace& trace);

// Returns all ranks' moments as bytes, which are equal if and only if the
// moments are (except for a collision of digests).
std::string Fingerprint(std::span<const RankMoment> moments);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_RUN_H_
