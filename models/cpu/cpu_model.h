// A network on the CPU: oneDNN, and our own batch norm.
#ifndef LOCKSTEP_MODELS_CPU_CPU_MODEL_H_
#define LOCKSTEP_MODELS_CPU_CPU_MODEL_H_

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
#include "models/program/operation_times.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {

// Sets the number of threads that compute layers for the calling thread. Each
// rank of a run sets its own number.
void SetComputeThreads(int count);

// A Model that computes a Network in host memory, on the OpenMP threads of the
// calling thread (SetComputeThreads). After the first step of a batch size, a
// step takes no memory from the system.
class CpuReplica : public Model {
 public:
  Parameters& parameters() override { return parameters_; }
  Buffers& buffers() override { return buffers_; }
  const Shape& input_shape() const override { return network_.input_shape(); }
  int64_t classes() const override { return network_.classes(); }
  const Network& network() const { return network_; }

  // The bytes reserved so far for activations, their gradients and scratch
  // space.
  int64_t workspace_bytes() const {
    return memory_.size() * static_cast<int64_t>(sizeof(float));
  }

  // Returns how each operation computes a batch of n, for reports: "winograd",
  // "direct", "products of matrices" or "lanes"; "" for an operation with only
  // one algorithm. Plans the batch size if it has no plans yet.
  virtual absl::StatusOr<std::vector<std::string>> Algorithms(int64_t n) = 0;
  // The layout of activations.
  virtual Layout layout() const = 0;

  // Adds the time of each operation to `times` from now on; null stops the
  // collection. `times` is borrowed.
  void CollectTimes(OperationTimes* times);

 protected:
  CpuReplica(Network network, uint64_t seed);

  // Makes memory() at least `bytes` long, aligned to 64 bytes. The contents are
  // lost if the memory has to grow. Error: kResourceExhausted, naming the batch
  // of n.
  absl::Status Reserve(int64_t n, int64_t bytes);
  float* memory() { return memory_.data(); }

  // Returns the sums of the operations' times; null if none are collected.
  OperationTimes* times() const { return times_; }
  // Return a timer that adds its lifetime to the operation's sum, if times are
  // collected. wanted: true on one thread of a step, false on all others.
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
  uint64_t seed = 0;  // The seed of the first weights.
  // The type of activations: float32, or bfloat16 with float32 parameters and
  // sums.
  DataType type = DataType::kFloat32;
  // kWinograd is valid only if CheckConvolutionAlgorithm allows it.
  ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kAuto;
  // If false, no two buffers of a step share memory, which helps to find
  // faults.
  bool share_memory = true;
  // If true, a network that FitsLanes (lane_model.h) is computed sixteen
  // samples at a time. If false, oneDNN computes every network, for
  // comparisons.
  bool lanes = true;
};

// Creates a replica of `network`. Errors: the network's status;
// kInvalidArgument for another type of activations, or for a network that does
// not end in one value per class; those of CheckActivationType and
// CheckConvolutionAlgorithm.
absl::StatusOr<std::unique_ptr<CpuReplica>> CreateCpuReplica(
    Network network, const CpuReplicaOptions& options = {});

// Creates a model of the network that `spec` names (CreateNetwork). Errors:
// those of CreateNetwork and CreateCpuReplica.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(
    absl::string_view spec, uint64_t seed, const NetworkInput& input = {});

// Checks that the sizes of the images, labels, shares and sample numbers of
// `batch` match each other and the model. Checks that labels are in range.
// Error: kInvalidArgument.
absl::Status CheckBatch(const Model& model, const Batch& batch);

// Returns the softmax cross-entropy of host float32 logits [n, classes].
// Overwrites `gradient`, unless that is empty, with the gradient of the loss
// times gradient_scale. Labels must be in range.
Metrics SoftmaxCrossEntropy(std::span<const float> logits, const Batch& batch,
                            int64_t classes, float gradient_scale,
                            std::span<float> gradient);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_CPU_MODEL_H_
