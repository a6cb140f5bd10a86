// The networks, by name. A network is described in a file of its own or beside
// its kin, and listed by one line in networks.cc.
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

// The images that a network is for, and how many classes they have.
struct NetworkInput {
  int64_t channels = 1;
  int64_t height = 28;
  int64_t width = 28;
  int64_t classes = 10;

  // The shape of one image.
  Shape shape() const {
    return {.n = 1, .c = channels, .h = height, .w = width};
  }
};

// The largest width of a layer that an option can ask for.
inline constexpr int64_t kMaxWidth = 1 << 16;

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

// A network that a user can name.
struct NetworkEntry {
  std::string name;
  std::string options = "";  // "width=64": with their defaults, for --help.
  std::string what;          // One line, for --help.
  std::string source;        // Whose tensors' names and first values it has.
  // The images that the source's network is for, and their classes.
  NetworkInput input = {};
  // The rows and columns of an image in benchmarks, and the images of a step,
  // unless their user says otherwise.
  int64_t benchmark_size = 28;
  int64_t benchmark_batch = 32;
  // The network for the images. `options` have been parsed; the caller calls
  // Finish.
  std::function<Network(const NetworkInput& input, NetworkOptions& options)>
      describe;

  // The images of benchmarks, of ten classes.
  NetworkInput benchmark_input() const {
    return {.channels = input.channels,
            .height = benchmark_size,
            .width = benchmark_size};
  }
};

// All of them, in the order of the list.
const std::vector<NetworkEntry>& ListedNetworks();

// "lenet, lenet_bn, resnet18_d2l, ...": for messages and --help.
std::string NetworkNames();

// One line for each network: its name, its options with their defaults, and
// what it is.
std::string NetworksHelp();

// The network that `spec` names, "vit_tiny_patch16_224" or
// "vit:patch=4,depth=6", for such images. Errors: kInvalidArgument, naming the
// network (with a list of all networks), the option, or the layer
// that does not fit.
absl::StatusOr<Network> CreateNetwork(absl::string_view spec,
                                      const NetworkInput& input = {});

// Returns the list's entry of the network that `spec` names. Errors:
// kInvalidArgument if there is no such network.
absl::StatusOr<NetworkEntry> EntryOf(absl::string_view spec);

// Whether that network has batch norm. Errors: kInvalidArgument for a name or
// options that no images could make right.
absl::StatusOr<bool> HasBatchNorm(absl::string_view spec);

// A Markdown table of all networks: parameters, numbers in buffers, and GFLOP
// of an image forward, for the images and classes of their source.
std::string NetworksTable();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_NETWORKS_H_
