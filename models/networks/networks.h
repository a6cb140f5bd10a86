// The networks, by name. Adding one is a function that describes it, in a file
// of its own or beside its kin, and a line in the list of networks.cc.
#ifndef LOCKSTEP_MODELS_NETWORKS_NETWORKS_H_
#define LOCKSTEP_MODELS_NETWORKS_NETWORKS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/networks/network.h"

namespace lockstep {

// The images that a network is for, and how many classes they have.
struct NetworkInput {
  int64_t channels = 1;
  int64_t height = 28;
  int64_t width = 28;
  int64_t classes = 10;
};

// The options of a network that a user gives as "name:key=value,key=value".
// Each is asked for by name, with its default; Finish then names those that
// nobody asked for.
class NetworkOptions {
 public:
  NetworkOptions() = default;

  // Errors: kInvalidArgument for what is not key=value, or a key given twice.
  static absl::StatusOr<NetworkOptions> Parse(absl::string_view text);

  int64_t Integer(const std::string& key, int64_t fallback, int64_t min,
                  int64_t max);
  double Rate(const std::string& key, double fallback);  // In [0, 1).

  // kInvalidArgument, naming the key, for the first that no network option is
  // called, or whose value is out of range.
  absl::Status Finish();

 private:
  std::map<std::string, std::string> values_;
  std::vector<std::string> known_;
  absl::Status status_;
};

// "lenet, lenet_bn, resnet18_d2l, ...": for messages and --help.
std::string NetworkNames();

// One line for each network: its name, its options with their defaults, and
// what it is.
std::string NetworksHelp();

// The network that `spec` names, "vit_tiny_patch16_224" or
// "vit:patch=4,depth=6", for such images. Errors: kInvalidArgument, naming the
// network (with the list of those that there are), the option, or the layer
// that does not fit.
absl::StatusOr<Network> CreateNetwork(absl::string_view spec,
                                      const NetworkInput& input = {});

// Whether that network has batch norm. Errors: kInvalidArgument for a name or
// options that no images could make right.
absl::StatusOr<bool> HasBatchNorm(absl::string_view spec);

// The networks of the d2l chapter on multi-GPU training (lenet.cc, resnet.cc).

// LeNet: conv 20@3x3, ReLU, average pool 2x2 -> conv 50@5x5, ReLU, average pool
// 2x2 -> linear 128, ReLU -> linear classes. Parameters W1, b1 to W4, b4 as
// there, linear weights [in, out]; weights are normal numbers times 0.01, the
// same as PyTorch's randn after manual_seed, biases zero. batch_norm: one, bn1
// and bn2, after each convolution, before its ReLU.
Network LeNet(const NetworkInput& input, bool batch_norm);

// ResNet-18 with a 3x3 stem of stride 1, no max-pool, and a bias in every
// convolution. Named as the state_dict of the chapter's module
// ("resnet_block2.0.conv3.bias", "fc.1.weight"). First values: what PyTorch
// gives after manual_seed(seed), the module's construction, and the chapter's
// init_weights (normal times 0.01). width: the first stage's channels.
Network D2lResNet18(const NetworkInput& input, int64_t width = 64);

// ResNet as torchvision has it ("v1.5": the stride of a bottleneck is in its
// 3x3 convolution), with its names and first values (resnet.cc). blocks: of
// each of the four stages.
struct ResNetOptions {
  std::string name;
  std::vector<int> blocks = {2, 2, 2, 2};
  bool bottleneck = false;
  int64_t width = 64;  // Of the first stage.
};
Network ResNet(const NetworkInput& input, const ResNetOptions& options);

// The vision transformer as timm has it, with its names and first values
// (vit.cc): patches through a convolution, class token, position embedding,
// `depth` blocks of attention and a two-layer perceptron, each behind a layer
// norm and with a shortcut, and a linear head on the class token. drop_path
// grows linearly to its value in the last block.
struct VisionTransformerOptions {
  std::string name;
  int64_t patch = 16;
  int64_t width = 192;
  int64_t depth = 12;
  int64_t heads = 3;
  double dropout = 0;  // After the embedding and in the perceptron.
  double attention_dropout = 0;
  double drop_path = 0;
};
Network VisionTransformer(const NetworkInput& input,
                          const VisionTransformerOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_NETWORKS_H_
