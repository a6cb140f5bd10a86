// The networks, by name. Each family of networks is described in one file and
// listed by one line in networks.cc.
#ifndef LOCKSTEP_MODELS_NETWORKS_NETWORKS_H_
#define LOCKSTEP_MODELS_NETWORKS_NETWORKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/networks/network.h"

namespace lockstep {

// The images that a network takes, and the number of their classes.
struct NetworkInput {
  int64_t channels = 1;
  int64_t height = 28;
  int64_t width = 28;
  int64_t classes = 10;

  // Returns the shape of one image.
  Shape shape() const {
    return {.n = 1, .c = channels, .h = height, .w = width};
  }
};

// The largest layer width that an option accepts.
inline constexpr int64_t kMaxWidth = 1 << 16;

// The options of a network that a user gives as "name:key=value,key=value". The
// network reads each option by name, with its default. Finish then reports the
// options that the network did not read.
class NetworkOptions {
 public:
  NetworkOptions() = default;

  // Errors: kInvalidArgument if an option is not key=value, or a key is given
  // twice.
  static absl::StatusOr<NetworkOptions> Parse(absl::string_view text);

  int64_t Integer(const std::string& key, int64_t fallback, int64_t min,
                  int64_t max);
  double Rate(const std::string& key, double fallback);  // In [0, 1).

  // Returns kInvalidArgument, naming the key, for the first option that the
  // network does not have or whose value is out of range.
  absl::Status Finish();

 private:
  std::map<std::string, std::string> values_;
  std::vector<std::string> known_;
  absl::Status status_;
};

// A network that a user can name.
struct NetworkEntry {
  std::string name;
  std::string options = "";  // For --help, with defaults: "width=64".
  std::string what;          // One line, for --help.
  std::string source;        // The source of names and first values.
  // The images that the network takes in its source, and their classes.
  NetworkInput input = {};
  // The default size of an image (rows and columns) and number of images of a
  // step in benchmarks.
  int64_t benchmark_size = 28;
  int64_t benchmark_batch = 32;
  // Returns the network for the images. `options` have been parsed; the caller
  // calls Finish.
  std::function<Network(const NetworkInput& input, NetworkOptions& options)>
      describe;

  // Returns the images of benchmarks, which have ten classes.
  NetworkInput benchmark_input() const {
    return {.channels = input.channels,
            .height = benchmark_size,
            .width = benchmark_size};
  }
};

// All networks, in the order of the list.
const std::vector<NetworkEntry>& ListedNetworks();

// The names for messages and --help: "lenet, lenet_bn, resnet18_d2l, ...".
std::string NetworkNames();

// Returns one line for each network with its name and its description, and a
// second line with its options and their defaults.
std::string NetworksHelp();

// Returns the network that `spec` names, "vit_tiny_patch16_224" or
// "vit:patch=4,depth=6", for the images of `input`. Errors: kInvalidArgument,
// naming the network (with a list of all networks), the option, or the layer
// that does not fit.
absl::StatusOr<Network> CreateNetwork(absl::string_view spec,
                                      const NetworkInput& input = {});

// Returns the list's entry of the network that `spec` names. Errors:
// kInvalidArgument if there is no such network.
absl::StatusOr<NetworkEntry> FindNetworkEntry(absl::string_view spec);

// Returns whether the network that `spec` names has batch norm. Errors:
// kInvalidArgument if the name or an option is wrong for all images.
absl::StatusOr<bool> HasBatchNorm(absl::string_view spec);

// Returns a Markdown table of all networks: parameters, numbers in buffers, and
// GFLOP of an image forward, for the images and classes of their source.
std::string NetworksTable();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_NETWORKS_H_
