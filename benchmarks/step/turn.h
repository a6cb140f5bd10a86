// A timed training step: the files from which a process loads its network and
// batch, the lines that the process answers, and the comparison of the
// results of two processes.
//
// A process for a step reads lines and answers each with one line
// (TorchProcess):
//
//   load THREADS TYPE MODE LAYOUT DEVICE FOLDER
//                    the files of WriteStepFiles   loaded
//   first            one step; its gradients go to  loss LOSS
//                    the folder
//   memory           a few steps, on a CPU          memory BYTES
//   time SECONDS     steps for so long, at least 1  timed SECONDS...
//   layers           our process on a CPU only      layers SECONDS...
//   chosen           our process only               chosen LAYOUT;ALGORITHM...
//
// DEVICE is cpu or cuda. The first step of "time" on a GPU does not count,
// since the GPU had a pause before it. If the process fails, it answers
// "cannot" and the reason. MODE is eager, compile or graph. Our process ignores
// LAYOUT; on a GPU it launches graphs if MODE is graph. Each operation
// has an ALGORITHM, which may be empty or have spaces and commas
// (CpuReplica::Algorithms).
#ifndef LOCKSTEP_BENCHMARKS_STEP_TURN_H_
#define LOCKSTEP_BENCHMARKS_STEP_TURN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/step/settings.h"
#include "models/networks/network.h"

namespace lockstep::benchmarks {

// Returns the network as JSON, from which a peer builds the same network:
// "operations" (kind, name, inputs, and the members of network.h's struct,
// tensors by name), "parameters" and "buffers" (their names in order).
std::string NetworkText(const Network& network);

// Writes the file that a process loads, case.safetensors: the parameters and
// buffers (first values by `seed`), input.images [n, h, w, c], input.labels,
// and as metadata "network" (NetworkText), "spec" and "classes". Errors: the
// file system's.
inline constexpr char kCaseFile[] = "/case.safetensors";
inline constexpr char kGradientsFile[] = "/gradients.safetensors";
absl::Status WriteStepFiles(const Network& network, const StepCase& one,
                            uint64_t seed, const std::string& folder);

// Writes gradients.safetensors full of NaN, which the process overwrites with
// its gradients. Errors: the file system's.
absl::Status ClearGradients(const Network& network, const std::string& folder);

// Parses the answer of a process: `word`, then at least `fewest` numbers, all
// finite. Returns the numbers. Errors: kFailedPrecondition with the reason if
// the answer is "cannot"; kInternal for any other answer.
absl::StatusOr<std::vector<double>> ParseNumbers(absl::string_view answer,
                                                 absl::string_view word,
                                                 size_t fewest);

// The algorithms with which our process computes a network.
struct ChosenAlgorithms {
  std::string layout = {};                   // The layout of activations.
  std::vector<std::string> operations = {};  // CpuReplica::Algorithms.
};
// Returns the answer to "chosen".
std::string ChosenText(const ChosenAlgorithms& chosen);
// Parses the answer to "chosen". Errors: as for ParseNumbers; kInternal if the
// answer does not have one algorithm for each of `operations`.
absl::StatusOr<ChosenAlgorithms> ParseChosen(absl::string_view answer,
                                             size_t operations);

// Serves as a process of the protocol: answers lines of standard input until it
// ends. answer: computes the answer to one line; its error becomes "cannot".
void ServeStepLines(
    const std::string& version,
    const std::function<absl::StatusOr<std::string>(absl::string_view line)>&
        answer);

// The results of the first step of one process.
struct FirstStep {
  double loss = 0;
  std::vector<std::vector<float>> gradients = {};  // By parameter.
};

// Reads the gradients that a process has written to the folder. Errors: the
// file's; kDataLoss if a gradient is missing.
absl::StatusOr<FirstStep> ReadFirstStep(const Network& network, double loss,
                                        const std::string& folder);

// The largest difference that two correct computations may have: `gradient` is
// a share of a gradient's norm, and the loss is compared with `loss`.
//
// A sum of K products has a rounding error of about sqrt(K) units of rounding
// u, and each layer adds an error of its own. Four standard deviations are
// allowed: e = 4 u sqrt(2 layers K). K is the longest sum, over a filter or
// over the positions of a batch. If one of ours computes a convolution by
// Winograd, its K is the square of WinogradError (models/reference/winograd.h).
// In bfloat16, float16 and tf32 sums are float32, and what a layer reads and
// writes is rounded: e = 4 u sqrt(2 layers) if this is more.
//
// A ReLU or a maximum has an edge. If its input lies within e of the edge, it
// may open in one computation and stay closed in the other. At each of the E
// layers that have edges, a share e of the inputs does so. In a norm the share
// becomes sqrt(E e). If sqrt(E e) is more than half, as for deep networks in
// bfloat16, the gradients of the first layers are mostly noise. A difference of
// 1.2 is then allowed, which still requires that the gradients are related.
struct StepTolerance {
  double loss = 0;
  double gradient = 0;
};
StepTolerance ToleranceOf(const Network& network, const StepCase& one);

// Compares two first steps. Returns the largest difference of a parameter's
// gradients, as a share of the gradient's norm. If tolerance.loss times the
// norm of the whole gradient is larger, the share is of that product. The bias
// before a batch norm has a true gradient of zero, so its computed gradient is
// only rounding. Its difference is therefore a share of the norm of the
// gradient of the weight beside it. Errors: kDataLoss, naming the loss or the
// parameter that differs too much.
absl::StatusOr<double> CompareFirstSteps(const Network& network,
                                         const FirstStep& ours,
                                         const FirstStep& theirs,
                                         const StepTolerance& tolerance);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_TURN_H_
