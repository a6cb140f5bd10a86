// Networks for the whole networks' checks, with parameters, buffers and batches
// of their own, and steps of data-parallel training on N ranks by the product's
// code, with hooks through which a mutant is planted around the product, never
// inside it.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_RUN_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_RUN_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/checks.h"
#include "conformance/rank_bytes.h"
#include "conformance/training_run.h"
#include "models/cpu/algorithm.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/reference/network_reference.h"
#include "models/train/data_parallel.h"

namespace lockstep::conformance {

inline constexpr int64_t kNetworkBatchSize = 8;  // Global.
inline constexpr float kNetworkLearningRate = 0.02f;

// A network, what it starts with (RandomParameters, RandomRunning) and the
// global batches of its steps.
class TestedNetwork {
 public:
  // batch_seeds: of as many steps as may be taken; such that on the way from
  // the start no ReLU input and no maximum is in doubt (Clearance).
  TestedNetwork(std::string spec, const NetworkInput& input,
                std::vector<uint32_t> batch_seeds,
                ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kAuto);

  const std::string& spec() const { return spec_; }
  // Whether the product computes it by Winograd wherever it can.
  bool is_winograd() const {
    return convolution_ == ConvolutionAlgorithm::kWinograd;
  }
  // The convolutions that the product computes by Winograd, for float32 loops
  // that are to round as it does.
  WinogradRule winograd_rule() const;
  // The network's name as tests' names have it: "resnet18d2l",
  // "resnet18d2lWinograd".
  std::string name() const;
  const NetworkInput& input() const { return input_; }
  const Network& network() const { return network_; }
  int steps() const { return static_cast<int>(batch_seeds_.size()); }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  // Those of float32, which leaves num_batches_tracked out.
  const std::vector<BufferSpec>& buffer_specs() const { return buffer_specs_; }
  bool IsNorm(const ParameterSpec& spec) const;
  bool HasZeroGradient(const ParameterSpec& spec) const;

  std::unique_ptr<Model> CreateModel() const;
  std::vector<float> Parameters(uint32_t seed) const;
  std::vector<float> Running(uint32_t seed) const;
  Samples Batch(uint32_t seed, int64_t n) const;
  Samples StepBatch(int step) const;

  // What rank 0 starts with: Parameters(1), computed once.
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

// ResNet-18 of the d2l chapter on images of 10 -> 5 -> 3 -> 2 pixels: odd sizes
// under strides, and every tap of every kernel meets a pixel. An exhaustive run
// (base/slice.h) has ResNet-18 itself; others one of a quarter of its width,
// which has the same layers, so that a step costs a sixteenth.
const TestedNetwork& TestedResNet();

// ResNet-18 of the d2l chapter, a quarter as wide, whose convolutions of 3x3 at
// stride 1 are Winograd's. Null where oneDNN has no Winograd.
const TestedNetwork* TestedWinogradResNet();

// A small vision transformer with dropout of every kind.
const TestedNetwork& TestedVit();

// torchvision's ResNet-18, an eighth as wide, on images of 33 pixels.
const TestedNetwork& TestedTorchvisionResNet();

// torchvision's ResNet-50, an eighth as wide, on such images.
const TestedNetwork& TestedResNet50();

// Those, and small ones of every other network.
const std::vector<const TestedNetwork*>& AllTestedNetworks();

// The keys of random masks, besides samples' numbers in their global batch.
inline constexpr uint64_t kMaskSeed = 5;

// The masks of a step.
KeepMask MaskOf(int step);

struct NetworkRun {
  // How many samples of each global batch each rank gets, in the batch's order:
  // world_size numbers that add up to kNetworkBatchSize.
  std::vector<int64_t> deal = {4, 4};
  int steps = 2;
  bool sync_bn = true;
  int64_t bucket_bytes = 0;  // 0: GradientReducer::DefaultBucketBytes.
  absl::Duration timeout = absl::Seconds(60);  // Of every wait for a rank.
  RankRunner ranks = nullptr;                  // Runs them in place of threads.
  const TestedNetwork* tested = &TestedResNet();

  int world_size() const { return static_cast<int>(deal.size()); }
  // "vitP4Deal3x0x5x0".
  std::string name() const;
};

// Prints the name, for messages of tests.
void PrintTo(const NetworkRun& run, std::ostream* out);

// Three ways to deal the batch: as even as can be, uneven, and with an empty
// share for some rank.
struct NetworkDeal {
  std::vector<int64_t> even, uneven, empty;
};

// Returns the shares of 2, 3 and 4 ranks.
const std::vector<NetworkDeal>& NetworkDeals();

// What a rank has at the start (moment 0) and after each step. Of what is
// large, a digest of each tensor's bits.
struct RankMoment {
  double loss_sum = 0;  // Of its shard in this step; 0 at the start.
  std::vector<uint64_t> parameters, gradients;  // By tensor.
  std::vector<float> running;
  std::vector<int64_t> batches;  // num_batches_tracked.
};

struct NetworkTrace {
  RankTrace first;  // Rank 0's; its samples are the global batches.
  std::vector<std::vector<RankMoment>> ranks;  // [rank][steps + 1].
};

// Parameters and buffers that each rank has for itself at first; rank 0's are
// start(), Running(1) and counters of 0.
void FillNetworkStart(const TestedNetwork& tested, Model& model, int rank);

// Appends what a rank has after a step, or at the start (step -1). full: null,
// or where rank 0 keeps the values themselves.
void RecordMoment(const TestedNetwork& tested, Model& model, int step,
                  double loss_sum, std::vector<RankMoment>& moments,
                  RankTrace* full);

// Every rank starts with parameters and buffers of its own, which
// the product replaces with rank 0's. Of the mutation only the group, from
// which batch norm's is split off, and the model count. Errors: the first
// rank's, with its number.
absl::StatusOr<NetworkTrace> RunNetwork(const NetworkRun& run,
                                        const Mutation& mutation);

// The same; every rank's status.
std::vector<absl::Status> RunNetworkRanks(const NetworkRun& run,
                                          const Mutation& mutation,
                                          NetworkTrace& trace);

// What every rank's moments are, as bytes: equal if and only if they are (but
// for a collision of digests).
std::string Fingerprint(std::span<const RankMoment> moments);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_RUN_H_
