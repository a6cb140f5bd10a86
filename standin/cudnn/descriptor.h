// The descriptors of cuDNN's stand-in: their attributes, and what they stand
// for once they are finalized.
#ifndef LOCKSTEP_STANDIN_CUDNN_DESCRIPTOR_H_
#define LOCKSTEP_STANDIN_CUDNN_DESCRIPTOR_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/operations.h"

namespace lockstep::standin::cudnn {

class Descriptor;
struct OperationRow;
// A cudnnBackendDescriptor_t points to one.
using DescriptorHandle = std::shared_ptr<Descriptor>;

// Not thread safe. Errors of all functions: kInvalidArgument for
// CUDNN_STATUS_BAD_PARAM, kFailedPrecondition for CUDNN_STATUS_NOT_INITIALIZED,
// kUnimplemented for CUDNN_STATUS_NOT_SUPPORTED.
class Descriptor {
 public:
  using Name = cudnnBackendAttributeName_t;

  explicit Descriptor(cudnnBackendDescriptorType_t type) : type_(type) {}

  cudnnBackendDescriptorType_t type() const { return type_; }
  bool finalized() const { return finalized_; }

  // Implement the functions of the same names in cudnn_graph.h.
  absl::Status SetAttribute(Name name, cudnnBackendAttributeType_t type,
                            int64_t count, const void* values);
  absl::Status GetAttribute(Name name, cudnnBackendAttributeType_t type,
                            int64_t most, int64_t* count, void* values) const;
  absl::Status Finalize();

  // Return the values of an attribute that is no descriptor. All returns no
  // values if the attribute is not set; One then returns T().
  template <typename T>
  std::vector<T> All(Name name) const {
    const auto found = attributes_.find(name);
    if (found == attributes_.end()) return {};
    std::vector<T> values(found->second.bytes.size() / sizeof(T));
    if (!values.empty()) {
      std::memcpy(values.data(), found->second.bytes.data(),
                  values.size() * sizeof(T));
    }
    return values;
  }
  template <typename T>
  T One(Name name) const {
    const std::vector<T> values = All<T>(name);
    return values.empty() ? T() : values.front();
  }

  // The operations of a finalized operation, operation graph, engine, engine
  // configuration or execution plan.
  const std::shared_ptr<const std::vector<Operation>>& operations() const {
    return operations_;
  }

 private:
  struct Attribute {
    std::vector<char> bytes;
    std::vector<DescriptorHandle> descriptors;
  };

  // Returns the descriptor to which an attribute refers, which must be
  // finalized and of this type. The attribute must be set.
  absl::StatusOr<const Descriptor*> Reference(
      Name name, cudnnBackendDescriptorType_t type) const;
  // Complete an operation from the descriptor that says how to compute.
  absl::Status ReadConvolution(const OperationRow& row, const Descriptor& how,
                               Operation& op) const;
  absl::Status ReadPointwise(const Descriptor& how, Operation& op) const;
  template <typename T>
  void Write(Name name, const T& value) {
    std::vector<char>& bytes = attributes_[name].bytes;
    bytes.resize(sizeof(T));
    std::memcpy(bytes.data(), &value, sizeof(T));
  }

  // Each finalizes a descriptor of one type, whose required attributes are set.
  absl::Status FinalizeCard();
  absl::Status FinalizeTensor();
  absl::Status FinalizeConvolution();
  absl::Status FinalizeMatmul();
  absl::Status FinalizeReduction();
  absl::Status FinalizeOperation(const OperationRow& row);
  absl::Status FinalizeGraph();
  absl::Status FinalizeHeuristics();
  absl::Status FinalizePlan();
  absl::Status FinalizePack();
  absl::Status FinalizeByType();

  cudnnBackendDescriptorType_t type_;
  bool finalized_ = false;
  std::map<Name, Attribute> attributes_;
  std::shared_ptr<const std::vector<Operation>> operations_;
  GraphTensor tensor_;  // Of a finalized tensor.
};

}  // namespace lockstep::standin::cudnn

#endif  // LOCKSTEP_STANDIN_CUDNN_DESCRIPTOR_H_
