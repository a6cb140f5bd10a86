// A network on the CPU: oneDNN, and our own batch norm.
#ifndef LOCKSTEP_MODELS_CPU_CPU_MODEL_H_
#define LOCKSTEP_MODELS_CPU_CPU_MODEL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "models/cpu/algorithm.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {

// Sets the number of threads of the layers' computations in the calling thread:
// each of a run's ranks has its own.
void SetComputeThreads(int count);

// What each operation took in the steps since it was last cleared.
struct OperationTimes {
  std::vector<double> forward_seconds;  // By operation; [operations].
  std::vector<double> backward_seconds;
};

// Adds the time of a call to a sum, if one is wanted.
class OperationTimer {
 public:
  explicit OperationTimer(double* sum) : sum_(sum) {
    if (sum_ != nullptr) start_ = Clock::now();
  }
  ~OperationTimer() {
    if (sum_ == nullptr) return;
    *sum_ += std::chrono::duration<double>(Clock::now() - start_).count();
  }
  OperationTimer(const OperationTimer&) = delete;
  OperationTimer& operator=(const OperationTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double* const sum_;
  Clock::time_point start_;
};

// A Model that computes a Network in host memory, on the calling thread's
// threads (SetComputeThreads). A step of a batch size that was seen before
// takes no memory from the system.
class CpuReplica : public Model {
 public:
  Parameters& parameters() override { return parameters_; }
  Buffers& buffers() override { return buffers_; }
  const Shape& input_shape() const override { return network_.input_shape(); }
  int64_t classes() const override { return network_.classes(); }
  const Network& network() const { return network_; }

  // Bytes of activations, gradients of activations and scratch space so far.
  int64_t workspace_bytes() const {
    return memory_.size() * static_cast<int64_t>(sizeof(float));
  }

  // How each operation computes a batch of n, for reports: "winograd",
  // "direct", "products of matrices", "lanes"; "" where there is no choice.
  // Plans it.
  virtual absl::StatusOr<std::vector<std::string>> Algorithms(int64_t n) = 0;
  // The layout of activations.
  virtual Layout layout() const = 0;

  // Adds up what operations take in `times` from now on; null: no more.
  // Borrowed.
  void CollectTimes(OperationTimes* times);

 protected:
  CpuReplica(Network network, uint64_t seed);

  // Makes memory() take `bytes`, aligned to 64; what was there is lost if it
  // was shorter. Error: kResourceExhausted, naming the batch of n.
  absl::Status Reserve(int64_t n, int64_t bytes);
  float* memory() { return memory_.data(); }

  // Add what passes until the timer's end to that operation's sum, if there is
  // one. wanted: false for all threads of a step but one.
  OperationTimer TimeForward(size_t operation, bool wanted = true) const;
  OperationTimer TimeBackward(size_t operation, bool wanted = true) const;

 private:
  const Network network_;
  Parameters parameters_;
  Buffers buffers_;
  AlignedBuffer memory_;
  OperationTimes* times_ = nullptr;
};

struct CpuReplicaOptions {
  uint64_t seed = 0;  // Of the first weights.
  // Of activations: float32, or bfloat16 with float32 parameters and sums.
  DataType type = DataType::kFloat32;
  // kWinograd where CheckConvolutionAlgorithm allows it.
  ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kAuto;
  // Else no two buffers of a step share memory: for finding faults.
  bool share_memory = true;
  // Compute sixteen samples at a time what FitsLanes (lane_model.h). Else all
  // is oneDNN's: for comparing.
  bool lanes = true;
};

// Errors: the network's status; kInvalidArgument for another type, or a network
// that does not end in one value for each class; CheckConvolutionAlgorithm's.
absl::StatusOr<std::unique_ptr<CpuReplica>> CreateCpuReplica(
    Network network, const CpuReplicaOptions& options = {});

// The network of that name and options (CreateNetwork). Errors: its, too.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(
    absl::string_view spec, uint64_t seed, const NetworkInput& input = {});

// Errors: kInvalidArgument unless images, labels and the rest have sizes that
// fit each other and the model, and labels are in range.
absl::Status CheckBatch(const Model& model, const Batch& batch);

// Softmax cross-entropy of host float32 logits [n, classes], and its gradient
// times gradient_scale, overwritten, unless that is empty. Labels are in range.
Metrics SoftmaxCrossEntropy(std::span<const float> logits, const Batch& batch,
                            int64_t classes, float gradient_scale,
                            std::span<float> gradient);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_CPU_MODEL_H_
