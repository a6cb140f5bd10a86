// The network whose training step the command `syncbn` times: which one, on
// which images, where its batch norms are, and the memory that it needs.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_NETWORK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_NETWORK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {

struct TrainedNetwork {
  std::string spec = "resnet18_d2l";  // As CreateNetwork takes it; empty: none.
  NetworkInput input = {};

  bool empty() const { return spec.empty(); }
};

// The values of --network, --image_size, --in_channels and --num_classes. A
// size that is empty or 0 is that of the list of networks.
struct NetworkFlags {
  std::string network = "none";
  std::string image_size = {};  // "224" or "192x256", height first.
  int64_t in_channels = 0;
  int64_t num_classes = 0;
};

// The network that the flags name, which DescribeTrained checks. Errors:
// kInvalidArgument, beginning with the flag, for a size that is out of range
// and for a network that does not exist.
absl::StatusOr<TrainedNetwork> ParseTrainedNetwork(const NetworkFlags& flags);

// The arguments that ParseTrainedNetwork reads as `trained`.
std::vector<std::string> ArgumentsOf(const TrainedNetwork& trained);

// The description of `trained`, which is not empty. Errors: kInvalidArgument,
// beginning with "--network=": CreateNetwork's, and for a network without batch
// norm.
absl::StatusOr<Network> DescribeTrained(const TrainedNetwork& trained);

// "lenet_bn, resnet18_d2l, ...": the networks that have batch norm.
std::string BatchNormNetworkNames();

// "28x28": height, width.
std::string ImageName(const NetworkInput& input);

// The inputs of the network's batch norms, in order, on one image.
std::vector<ActivationShape> BatchNormShapes(const Network& network,
                                             Layout layout);

// The number of replicas that a rank on the CPU trains.
inline constexpr int64_t kReplicas = 3;

// The bytes of host memory that a rank on the CPU comes to use to train its
// replicas on `batch` images. The description decides them; the test of the
// command's memory compares them with the growth of a process. Each replica has
//   its parameters, their gradients, the weights as oneDNN takes them, from
//     forward to backward, and scratch space: four times the parameters;
//   plans with code that oneDNN generates: kPlanBytes;
//   for each image the outputs of all operations, which backward reads, and two
//     times the largest one, for the gradients of an operation's input and
//     output.
// All numbers are float32. At most 2^62.
int64_t TrainingBytes(const Network& network, int64_t batch);
inline constexpr int64_t kPlanBytes = 16 << 20;

// The same for a rank on a GPU: x, y and their gradients of each batch norm,
// which are checked on the host.
int64_t BatchNormBytes(const Network& network, int64_t batch, DataType type);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_NETWORK_H_
