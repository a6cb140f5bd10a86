// The network whose training step the command `syncbn` times: its name, its
// images, its batch norms, and the memory that it needs.
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
// size that is empty or 0 is taken from the list of networks.
struct NetworkFlags {
  std::string network = "none";
  std::string image_size = {};  // "224" or "192x256", height first.
  int64_t in_channels = 0;
  int64_t num_classes = 0;
};

// Returns the network that the flags name; DescribeTrained checks it. Errors:
// kInvalidArgument, beginning with the flag, for a size that is out of range
// and for a network that does not exist.
absl::StatusOr<TrainedNetwork> ParseTrainedNetwork(const NetworkFlags& flags);

// Returns the arguments that ParseTrainedNetwork reads as `trained`.
std::vector<std::string> ArgumentsOf(const TrainedNetwork& trained);

// Returns the description of `trained`, which must not be empty. Errors:
// kInvalidArgument, beginning with "--network=": CreateNetwork's, and for a
// network without batch norm.
absl::StatusOr<Network> DescribeTrained(const TrainedNetwork& trained);

// Returns the names of the networks that have batch norm: "lenet_bn,
// resnet18_d2l, ...".
std::string BatchNormNetworkNames();

// Returns "28x28": height, width.
std::string ImageName(const NetworkInput& input);

// Returns the inputs of the network's batch norms, in order, on one image.
std::vector<ActivationShape> BatchNormShapes(const Network& network,
                                             Layout layout);

// The number of replicas that a rank on the CPU trains.
inline constexpr int64_t kReplicas = 3;

// Returns the bytes of host memory that a rank on the CPU uses at most to train
// its replicas on `batch` images. The bytes follow from the description. The
// test of the command's memory compares them with the growth of a process. Each
// replica has
//   its parameters, their gradients, the weights as oneDNN takes them, from
//     forward to backward, and scratch space: four times the parameters;
//   plans with code that oneDNN generates: kPlanBytes;
//   for each image the outputs of all operations, which backward reads, and two
//     times the largest one, for the gradients of an operation's input and
//     output.
// All numbers are float32. At most 2^62.
int64_t TrainingBytes(const Network& network, int64_t batch);
inline constexpr int64_t kPlanBytes = 16 << 20;

// Returns the same for a rank on a GPU: x, y and their gradients of each batch
// norm, which are checked on the host.
int64_t BatchNormBytes(const Network& network, int64_t batch, DataType type);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_NETWORK_H_
