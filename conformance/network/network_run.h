// ResNet-18's parameters, buffers and batches for the network's checks, and
// steps of data-parallel training on N ranks by the product's code, with hooks
// through which a mutant is planted around the product, never inside it.
//
// An exhaustive run (base/slice.h) trains ResNet-18 itself; others one of a
// quarter of its width, which has the same layers, so that a step costs a
// sixteenth.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_RUN_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_RUN_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/slice.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/checks.h"
#include "conformance/network/resnet_reference.h"
#include "conformance/rank_bytes.h"
#include "conformance/training_run.h"
#include "models/model.h"
#include "models/train/data_parallel.h"

namespace lockstep::conformance {

// 10 -> 5 -> 3 -> 2 pixels: odd sizes under strides, and every tap of every
// kernel meets a pixel.
inline constexpr int64_t kNetworkSide = 10;

inline int64_t NetworkWidth() {
  return IsExhaustive() ? kResNet : kNarrowResNet;
}

std::unique_ptr<Model> CreateNetwork();

// What it has, as the reference knows it.
inline const std::vector<ParameterSpec>& NetworkSpecs() {
  return ResNetParameterSpecs(NetworkWidth());
}
inline const std::vector<ParameterSpec>& NetworkBufferSpecs() {
  return ResNetBufferSpecs(NetworkWidth());
}

// Parameters, flat (ResNetParameterSpecs), with which few ReLU inputs come near
// zero: each batch norm's bias is 1.5 to 2.5 times its weight, upwards in even
// channels and downwards in odd ones, so that a twentieth of the inputs is on
// the other side of zero than its channel. Where an input is zero but for
// rounding its derivative is a matter of the order of additions, and one such
// input changes a gradient by a thousand times what rounding does.
std::vector<float> NetworkParameters(uint32_t seed,
                                     int64_t width = NetworkWidth());

// Running statistics, flat (ResNetBufferSpecs), that no batch would give:
// means around zero, variances in [0.5, 1.5).
std::vector<float> NetworkRunning(uint32_t seed,
                                  int64_t width = NetworkWidth());

// n images [1, kNetworkSide, kNetworkSide] of random bytes divided by 255, as a
// Dataset gives them, with random labels.
Samples NetworkBatch(uint32_t seed, int64_t n);

inline constexpr int64_t kNetworkBatchSize = 8;  // Global.
inline constexpr float kNetworkLearningRate = 0.02f;
inline constexpr int kNetworkSteps = 3;

// The global batch of step 0, 1 or 2. They are batches at which, on the way
// from NetworkParameters(1), no ReLU input comes near zero (Clearance).
Samples NetworkStepBatch(int step);

struct NetworkRun {
  // How many samples of each global batch each rank gets, in the batch's order:
  // world_size numbers that add up to kNetworkBatchSize.
  std::vector<int64_t> deal = {4, 4};
  int steps = 2;
  bool sync_bn = true;
  int64_t bucket_bytes = GradientReducer::kDefaultBucketBytes;
  absl::Duration timeout = absl::Seconds(60);  // Of every wait for a rank.
  RankRunner ranks = nullptr;                  // Runs them in place of threads.

  int world_size() const { return static_cast<int>(deal.size()); }
};

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
// NetworkParameters(1), NetworkRunning(1) and counters of 0.
void FillNetworkStart(Model& model, int rank);

// Appends what a rank has after a step, or at the start (step -1). full: null,
// or where rank 0 keeps the values themselves.
void RecordMoment(Model& model, int step, double loss_sum,
                  std::vector<RankMoment>& moments, RankTrace* full);

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
