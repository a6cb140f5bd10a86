// cuDNN's graphs and plans: builds a graph of operations, lets cuDNN's
// heuristics choose an engine for an installed card or for a described one, and
// executes the plan.
#ifndef LOCKSTEP_MODELS_CUDA_CUDNN_PLAN_H_
#define LOCKSTEP_MODELS_CUDA_CUDNN_PLAN_H_

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"

namespace lockstep {

struct DestroyCudnnDescriptor {
  void operator()(void* descriptor) const {
    cudnnBackendDestroyDescriptor(descriptor);
  }
};
// A descriptor of cuDNN's backend. cuDNN keeps alive the descriptors that a
// descriptor refers to.
using CudnnDescriptor = std::unique_ptr<void, DestroyCudnnDescriptor>;

// A card that plans are made for. Movable; plans do not refer to the object.
class CudnnDevice {
 public:
  // Returns the card of `handle`, which is borrowed for the call. Errors:
  // cuDNN's.
  static absl::StatusOr<CudnnDevice> OfHandle(cudnnHandle_t handle);

  // Returns a card that is described by JSON in the format of Description().
  // Needs neither a GPU nor a driver. cuDNN does not verify the description.
  // Errors: kInvalidArgument if cuDNN (9.8 or later) does not accept the JSON.
  static absl::StatusOr<CudnnDevice> OfDescription(absl::string_view json);

  // Returns, as JSON, everything that cuDNN reads about a card to choose and
  // build plans.
  absl::StatusOr<std::string> Description() const;

  cudnnBackendDescriptor_t descriptor() const { return descriptor_.get(); }

 private:
  explicit CudnnDevice(CudnnDescriptor descriptor)
      : descriptor_(std::move(descriptor)) {}

  CudnnDescriptor descriptor_;
};

// A tensor of four dimensions in a graph.
struct CudnnTensor {
  using Sizes = std::array<int64_t, 4>;
  // A virtual tensor is a value between two operations and has no memory. A
  // scalar has one element, which lies in the host's memory.
  enum class Place { kDevice, kVirtual, kScalar };

  int64_t uid = 0;  // The operands of an execution are given by this number.
  DataType type = DataType::kFloat32;
  Sizes dims = {};
  Sizes strides = {};  // In elements.
  Place place = Place::kDevice;
};

// The value of a descriptor's attribute. Borrows the memory: pass attributes
// only within the expression that makes them.
struct CudnnAttribute {
  CudnnAttribute(cudnnBackendAttributeName_t name,
                 cudnnBackendAttributeType_t type, size_t count,
                 const void* values)
      : name(name),
        type(type),
        count(static_cast<int64_t>(count)),
        values(values) {}
  // One value.
  CudnnAttribute(cudnnBackendAttributeName_t name,
                 cudnnBackendAttributeType_t type, const auto& value)
      : CudnnAttribute(name, type, 1, &value) {}
  // Several integers.
  CudnnAttribute(cudnnBackendAttributeName_t name,
                 std::span<const int64_t> values)
      : CudnnAttribute(name, CUDNN_TYPE_INT64, values.size(), values.data()) {}
  // A descriptor.
  CudnnAttribute(cudnnBackendAttributeName_t name,
                 const cudnnBackendDescriptor_t& descriptor)
      : CudnnAttribute(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, descriptor) {}

  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t count;
  const void* values;
};

// Returns the status with Describe(graph) before its message. Describes the
// graph of an error only.
template <typename Graph>
absl::Status NameGraph(const Graph& graph, const absl::Status& status) {
  if (status.ok()) return status;
  return {status.code(), absl::StrCat(Describe(graph), ": ", status.message())};
}

// Returns the strides of a tensor whose dimensions are in memory in their
// order.
inline CudnnTensor::Sizes PackedStrides(const CudnnTensor::Sizes& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}

// Builds a graph, operation by operation. The descriptors that the functions
// return live as long as the builder or its graph. Errors: cuDNN's, with `what`
// or the attribute's number.
class CudnnGraphBuilder {
 public:
  absl::StatusOr<cudnnBackendDescriptor_t> Tensor(const CudnnTensor& tensor);

  // Creates a descriptor that an operation refers to, such as a convolution's.
  absl::StatusOr<cudnnBackendDescriptor_t> Describe(
      cudnnBackendDescriptorType_t type,
      std::initializer_list<CudnnAttribute> attributes, const char* what);

  // Adds an operation.
  absl::Status Add(cudnnBackendDescriptorType_t type,
                   std::initializer_list<CudnnAttribute> attributes,
                   const char* what);

  // Adds y = mode(x, b), computed in float32. b is null for modes of one
  // operand.
  absl::Status Pointwise(cudnnPointwiseMode_t mode, cudnnBackendDescriptor_t x,
                         cudnnBackendDescriptor_t b,
                         cudnnBackendDescriptor_t y);

  // Returns the graph's descriptors; the operation graph is the last one. The
  // builder is then empty.
  absl::StatusOr<std::vector<CudnnDescriptor>> Finish();

 private:
  std::vector<CudnnDescriptor> made_;
  std::vector<cudnnBackendDescriptor_t> operations_;
};

// cuDNN's way to compute a graph on a card. A plan is the first configuration
// from cuDNN's heuristics that cuDNN can build. Configurations that are
// nondeterministic or sum in less than float32 are excluded.
class CudnnPlan {
 public:
  // graph: the result of CudnnGraphBuilder::Finish. may_round: whether engines
  // that round float32 inputs are accepted. Takes milliseconds, or longer if
  // the engine is compiled at run time: keep the plan. Does not use the card.
  // Errors: cuDNN's; kUnimplemented if all configurations are unsupported or
  // excluded. If no configuration can be built, the error is that of the last
  // one, and the message gives the number of configurations.
  static absl::StatusOr<CudnnPlan> Create(const CudnnDevice& device,
                                          std::vector<CudnnDescriptor> graph,
                                          bool may_round);

  // The engine's number in cuDNN and its settings: "eng46 k2=16 k6=3".
  const std::string& engine() const { return engine_; }
  // cuDNN's notes about the engine: "tensor core, runtime compilation".
  const std::string& notes() const { return notes_; }
  // The size of the device memory that an execution needs besides its operands.
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // The number of the heuristics' configurations that were rejected before this
  // one.
  int rejected_count() const { return rejected_count_; }

  // Enqueues the plan on the handle's stream. The handle must belong to the
  // card that the plan was made for. uids, pointers: the graph's tensors that
  // are not virtual, and their memory, aligned to 16 bytes; a scalar is read
  // before the call returns. workspace: workspace_bytes() of device memory,
  // aligned to 16 bytes; it is free again when the stream has finished the
  // plan. Errors: cuDNN's. Not thread safe on one handle.
  absl::Status Execute(cudnnHandle_t handle, std::span<const int64_t> uids,
                       std::span<void* const> pointers, void* workspace) const;

 private:
  CudnnPlan() = default;

  // The descriptors that plan_ uses.
  std::vector<CudnnDescriptor> parts_;
  CudnnDescriptor plan_;
  std::string engine_, notes_;
  int64_t workspace_bytes_ = 0;
  int rejected_count_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_CUDNN_PLAN_H_
