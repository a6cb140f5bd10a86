// A training step that is timed: which network on which batch, the files that
// bring it to a process that trains it, the lines that such a process
// understands, and whether two processes computed the same.
//
// A process for a step reads lines and answers each with one (TorchProcess):
//
//   load THREADS TYPE MODE LAYOUT FOLDER
//                    what WriteStepFiles left       loaded
//   first            one step; its gradients go to  loss LOSS
//                    the folder
//   memory           a few steps                    memory BYTES
//   time SECONDS     steps for so long, but one     timed SECONDS...
//   layers           ours alone                     layers SECONDS...
//   chosen           ours alone                     chosen LAYOUT;ALGORITHM...
//
// or with "cannot" and why. Ours ignores MODE and LAYOUT. Each operation
// has an ALGORITHM, which may be empty or have spaces and commas
// (CpuReplica::Algorithms).
#ifndef LOCKSTEP_BENCHMARKS_STEP_STEP_H_
#define LOCKSTEP_BENCHMARKS_STEP_STEP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/step/roofline.h"
#include "models/cpu/algorithm.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

namespace lockstep::benchmarks {

struct StepCase {
  std::string spec;  // As CreateNetwork takes it.
  int64_t batch = 0;
  NetworkInput input = {};
  int threads = 1;
  DataType type = DataType::kFloat32;
  // How ours convolves: it is measured once for each.
  std::vector<ConvolutionAlgorithm> convolutions = {
      ConvolutionAlgorithm::kAuto};
};

// "resnet34, batch 16, 3x112x112".
std::string NetworkName(const StepCase& one);
// That, and "1 thread, float32".
std::string Name(const StepCase& one);

// "ours", "ours, direct", "ours, winograd".
std::string OursName(ConvolutionAlgorithm convolution);

struct StepSettings {
  std::string models;
  int64_t batch = 0, channels = 0, image_size = 0;  // 0: the network's own.
  int64_t classes = 10;
  std::vector<int> threads = {};
  std::vector<DataType> types = {};
  std::vector<ConvolutionAlgorithm> convolutions = {
      ConvolutionAlgorithm::kAuto};
  bool eager = true, compile = true, system = true;  // Peers.
  bool layers = false;
  int rounds = 0;
  double seconds = 20;
  double timeout = 900;
  uint64_t seed = 0;
};

// The steps that the settings ask for: network by network, and of each all
// batches, threads and types. Only resnet18_d2l has two batches, 32 and 16,
// unless the settings name one. Errors: kInvalidArgument, beginning with the
// flag: for a network that does not exist or does not fit its images, for one
// with dropout, whose masks no peer has, and for sizes out of range.
absl::StatusOr<std::vector<StepCase>> CasesOf(const StepSettings& settings);

// --threads, --types, --convolution and --peers. Errors: kInvalidArgument,
// beginning with the flag.
absl::Status ParseStepLists(absl::string_view threads, absl::string_view types,
                            absl::string_view convolutions,
                            absl::string_view peers, StepSettings& settings);

// Whether it has dropout, whose masks are drawn by another generator elsewhere.
bool DrawsMasks(const Network& network);

// The network as JSON, for who builds it elsewhere: "operations" (kind, name,
// inputs, and the members of network.h's struct, tensors by name),
// "parameters", "buffers": their names in order.
std::string NetworkText(const Network& network);

// What a process is told to load: case.safetensors with the parameters and
// buffers (first values by `seed`), input.images [n, h, w, c], input.labels,
// and as metadata "network" (NetworkText), "spec" and "classes". Errors: the
// file system's.
inline constexpr char kCaseFile[] = "/case.safetensors";
inline constexpr char kGradientsFile[] = "/gradients.safetensors";
absl::Status WriteStepFiles(const Network& network, const StepCase& one,
                            uint64_t seed, const std::string& folder);

// Fills gradients.safetensors with NaN, to be written over. Errors: the file
// system's.
absl::Status ClearGradients(const Network& network, const std::string& folder);

// The answer of a process: `word` and numbers behind it, at least `fewest`,
// all finite. Errors: kFailedPrecondition with the reason for "cannot";
// kInternal for anything else.
absl::StatusOr<std::vector<double>> ParseNumbers(absl::string_view answer,
                                                 absl::string_view word,
                                                 size_t fewest);

// How our process computes a network.
struct ChosenAlgorithms {
  std::string layout = {};                   // Of activations.
  std::vector<std::string> operations = {};  // CpuReplica::Algorithms.
};
// The answer to "chosen".
std::string ChosenText(const ChosenAlgorithms& chosen);
// Errors: as of ParseNumbers; kInternal unless there is one for each operation.
absl::StatusOr<ChosenAlgorithms> ParseChosen(absl::string_view answer,
                                             size_t operations);

// A process's part: answers lines of standard input until it ends.
// answer: of one line; its error becomes "cannot".
void ServeStepLines(
    const std::string& version,
    const std::function<absl::StatusOr<std::string>(absl::string_view line)>&
        answer);

// What the first step of one process found out.
struct FirstStep {
  double loss = 0;
  std::vector<std::vector<float>> gradients = {};  // By parameter.
};

// The gradients that a process has left in the folder. Errors: of the file.
absl::StatusOr<FirstStep> ReadFirstStep(const Network& network, double loss,
                                        const std::string& folder);

// How far two right computations may be apart, as a share of a gradient's norm
// (and the loss, which is compared to `loss`).
//
// Sums of K products err by about sqrt(K) units of rounding u, each of the
// layers adds its own, and four deviations are allowed: e = 4 u sqrt(2 layers
// K), with K the longest sum, over a filter or over the positions of a batch. A
// convolution that one of ours computes by Winograd errs as a sum of more
// products would, the square of WinogradError (models/reference/winograd.h). In
// bfloat16 sums are float32 and only results are rounded: e = 4 u sqrt(2
// layers). Where a ReLU's or a maximum's input lies within e of its edge, it
// may open in one and not in the other: a share e of all at each of the E
// layers that have edges, which a norm sees as sqrt(E e). Where that is more
// than half, as in bfloat16 for deep networks, the gradients of the first
// layers are noise for the most part: 1.2 is allowed, so that they are related.
struct StepTolerance {
  double loss = 0;
  double gradient = 0;
};
StepTolerance ToleranceOf(const Network& network, const StepCase& one);

// The largest difference of a parameter's gradients, as a share of its norm,
// or of tolerance.loss of the whole gradient's if that is larger. The bias
// before a batch norm, whose gradient is nothing but the rounding of a sum that
// is zero, is held against the gradient of the weight beside it. Errors:
// kDataLoss, naming what is too far apart: the loss or the parameter.
absl::StatusOr<double> CompareFirstSteps(const Network& network,
                                         const FirstStep& ours,
                                         const FirstStep& theirs,
                                         const StepTolerance& tolerance);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_STEP_H_
