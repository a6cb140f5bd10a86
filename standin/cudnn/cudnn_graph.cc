#include "standin/cudnn/cudnn_graph.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "standin/cudnn/descriptor.h"
#include "standin/cudnn/plan.h"
#include "standin/include/cuda_runtime.h"
#include "standin/queue.h"

namespace lockstep::standin::cudnn {
namespace {

std::string& LastError() {
  thread_local std::string error;
  return error;
}

// Returns cuDNN's code of the error, and keeps its text.
cudnnStatus_t Report(const absl::Status& status) {
  if (status.ok()) return CUDNN_STATUS_SUCCESS;
  LastError() = std::string(status.message());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return CUDNN_STATUS_BAD_PARAM;
    case absl::StatusCode::kFailedPrecondition:
      return CUDNN_STATUS_NOT_INITIALIZED;
    case absl::StatusCode::kUnimplemented:
      return CUDNN_STATUS_NOT_SUPPORTED;
    default:
      return CUDNN_STATUS_EXECUTION_FAILED;
  }
}

Descriptor* Find(cudnnBackendDescriptor_t descriptor) {
  return descriptor == nullptr
             ? nullptr
             : static_cast<DescriptorHandle*>(descriptor)->get();
}

absl::Status NullError(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is null"));
}

absl::Status Execute(cudnnHandle_t handle, const Descriptor* plan,
                     const Descriptor* pack) {
  if (handle == nullptr) return NullError("the handle");
  if (plan == nullptr || pack == nullptr) return NullError("a descriptor");
  if (plan->type() != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
      pack->type() != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
    return absl::InvalidArgumentError(
        "the descriptors are not an execution plan and a variant pack");
  }
  if (!plan->finalized() || !pack->finalized()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", plan->finalized() ? "variant pack" : "plan",
                     " is not finalized"));
  }
  const auto uids = pack->All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack->All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  GraphMemory memory;
  for (size_t i = 0; i < uids.size(); ++i)
    memory.tensors[uids[i]] = pointers[i];
  memory.workspace = pack->One<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const auto operations = plan->operations();
  if (absl::Status status = CheckMemory(*operations, memory); !status.ok()) {
    return status;
  }
  ReadScalars(*operations, memory);
  const cudaError_t error = PutKernel(handle->stream, [operations, memory] {
    return [operations, memory] {
      Run(*operations, memory);
      return true;
    };
  });
  return error == cudaSuccess
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("the handle's stream: ",
                                                cudaGetErrorName(error)));
}

}  // namespace
}  // namespace lockstep::standin::cudnn

using lockstep::standin::cudnn::Descriptor;
using lockstep::standin::cudnn::DescriptorHandle;
using lockstep::standin::cudnn::Find;
using lockstep::standin::cudnn::NullError;
using lockstep::standin::cudnn::Report;

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "success";
    case CUDNN_STATUS_NOT_INITIALIZED:
      return "not initialized";
    case CUDNN_STATUS_BAD_PARAM:
      return "a bad parameter";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "not supported";
    case CUDNN_STATUS_EXECUTION_FAILED:
      break;
  }
  return "execution failed";
}

void cudnnGetLastErrorString(char* message, size_t max_size) {
  if (max_size == 0) return;
  const std::string& text = lockstep::standin::cudnn::LastError();
  const size_t size = std::min(text.size(), max_size - 1);
  std::memcpy(message, text.data(), size);
  message[size] = '\0';
}

size_t cudnnGetVersion() { return 91900; }

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  *made = new DescriptorHandle(std::make_shared<Descriptor>(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(
    cudnnBackendDescriptor_t descriptor) {
  delete static_cast<DescriptorHandle*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type,
                                       int64_t count, const void* values) {
  Descriptor* const found = Find(descriptor);
  return Report(found == nullptr
                    ? NullError("the descriptor")
                    : found->SetAttribute(name, type, count, values));
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type,
                                       int64_t most, int64_t* count,
                                       void* values) {
  const Descriptor* const found = Find(descriptor);
  return Report(found == nullptr
                    ? NullError("the descriptor")
                    : found->GetAttribute(name, type, most, count, values));
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Descriptor* const found = Find(descriptor);
  return Report(found == nullptr ? NullError("the descriptor")
                                 : found->Finalize());
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
                                  cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  return Report(
      lockstep::standin::cudnn::Execute(handle, Find(plan), Find(pack)));
}
