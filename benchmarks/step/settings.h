// The settings of the command `step`: its flags as checked values, and the
// steps to measure.
#ifndef LOCKSTEP_BENCHMARKS_STEP_SETTINGS_H_
#define LOCKSTEP_BENCHMARKS_STEP_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "models/cpu/algorithm.h"
#include "models/cuda/precision.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/device.h"

namespace lockstep::benchmarks {

struct StepCase {
  std::string spec;  // As CreateNetwork takes it.
  int64_t batch = 0;
  NetworkInput input = {};
  int threads = 1;
  ConvolutionPrecision precision = ConvolutionPrecision::kFloat32;
  ComputeDevice device = ComputeDevice::kCpu;
  // The convolution algorithms of our step, which is measured once with each.
  std::vector<ConvolutionAlgorithm> convolutions = {
      ConvolutionAlgorithm::kAuto};

  DataType type() const { return TypeOf(precision); }  // Of activations.
};

// Returns a name such as "resnet34, batch 16, 3x112x112".
std::string NetworkName(const StepCase& one);
// Returns the network's name, the threads or "GPU", and the type, such as
// "resnet34, batch 16, 3x112x112, 1 thread, float32".
std::string Name(const StepCase& one);

// Returns "ours", "ours, direct" or "ours, winograd".
std::string OursName(ConvolutionAlgorithm convolution);

struct StepSettings {
  std::string models;
  int64_t batch = 0, channels = 0, image_size = 0;  // 0: the network's own.
  int64_t classes = 10;
  std::vector<int> threads = {};
  std::vector<ConvolutionPrecision> precisions = {};
  ComputeDevice device = ComputeDevice::kCpu;
  std::vector<ConvolutionAlgorithm> convolutions = {
      ConvolutionAlgorithm::kAuto};
  // The peers to measure.
  bool eager = true, compile = true, graph = false, system = true;
  bool layers = false;
  int rounds = 0;
  double seconds = 20;
  double timeout = 900;
  // The programs that are tried in turn as the Python that has PyTorch.
  std::vector<std::string> pythons = {};
  uint64_t seed = 0;
};

// Returns the steps to measure: for each network, all batches, threads and
// types. If the settings name no batch, resnet18_d2l has two, 32 and 16; other
// networks have one. Errors: kInvalidArgument, beginning with the flag, if a
// network does not exist or does not fit its images, or if a size is out of
// range. A network with dropout is refused with the same error, because no peer
// draws the same masks.
absl::StatusOr<std::vector<StepCase>> CasesOf(const StepSettings& settings);

// Parses a list of names of types. Error: kInvalidArgument, beginning with
// `flag`, for another name.
absl::StatusOr<std::vector<ConvolutionPrecision>> ParsePrecisions(
    absl::string_view flag, absl::string_view names);

// Parses --threads, --types, --convolution and --peers into `settings`, whose
// device is set. Errors: kInvalidArgument, beginning with the flag, also for a
// type or a peer that the device does not have.
absl::Status ParseStepLists(absl::string_view threads, absl::string_view types,
                            absl::string_view convolutions,
                            absl::string_view peers, StepSettings& settings);

// Returns whether the network has dropout. A peer draws other masks, because
// its random generator differs.
bool DrawsMasks(const Network& network);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_SETTINGS_H_
