#include "models/io/model_tensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/io/safetensors.h"
#include "models/model.h"

namespace lockstep {
namespace {

// What the model has under one name, and where.
struct Target {
  DataType type;
  std::vector<int64_t> shape;
  std::span<std::byte> bytes;
};

std::map<std::string, Target> TargetsOf(Parameters& parameters,
                                        Buffers& buffers) {
  std::map<std::string, Target> targets;
  for (int i = 0; i < parameters.count(); ++i) {
    const ParameterSpec& spec = parameters.specs()[i];
    targets[spec.name] = {DataType::kFloat32, spec.shape,
                          std::as_writable_bytes(parameters.value(i))};
  }
  for (int i = 0; i < buffers.count(); ++i) {
    const BufferSpec& spec = buffers.specs()[i];
    targets[spec.name] = {
        spec.type, spec.shape,
        spec.type == DataType::kFloat32
            ? std::as_writable_bytes(buffers.value(i))
            : std::as_writable_bytes(std::span(&buffers.counter(i), 1))};
  }
  return targets;
}

// "float32 [20, 1, 3, 3]".
std::string Describe(DataType type, const std::vector<int64_t>& shape) {
  return absl::StrCat(Name(type), " [", absl::StrJoin(shape, ", "), "]");
}

absl::Status Unfit(absl::string_view file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

// An int64 tensor is a count, which is to go on counting.
absl::Status CheckCounter(const NamedTensor& tensor, const std::string& name,
                          absl::string_view file) {
  if (tensor.type != DataType::kInt64) return absl::OkStatus();
  int64_t count = 0;
  std::memcpy(&count, tensor.data.data(), sizeof(count));
  if (count >= 0 && count < std::numeric_limits<int64_t>::max()) {
    return absl::OkStatus();
  }
  return Unfit(file, absl::StrCat("tensor '", name, "' is ", count,
                                  ", which is no count of batches"));
}

absl::Status CheckTensors(const NamedTensors& tensors,
                          const std::map<std::string, Target>& targets,
                          absl::string_view file) {
  for (const auto& [name, target] : targets) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      return Unfit(file, absl::StrCat("has no tensor '", name, "'"));
    }
    const NamedTensor& tensor = found->second;
    if (tensor.type != target.type || tensor.shape != target.shape) {
      return Unfit(file, absl::StrCat("tensor '", name, "' is ",
                                      Describe(tensor.type, tensor.shape),
                                      ", the model's is ",
                                      Describe(target.type, target.shape)));
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckCounter(tensor, name, file));
  }
  for (const auto& [name, tensor] : tensors) {
    if (!targets.contains(name)) {
      return Unfit(file, absl::StrCat("tensor '", absl::Utf8SafeCEscape(name),
                                      "' is not the model's"));
    }
  }
  return absl::OkStatus();
}

// `flat`: laid out as the parameters are.
NamedTensors TensorsOf(const Parameters& parameters,
                       std::span<const float> flat) {
  NamedTensors tensors;
  for (const ParameterSpec& spec : parameters.specs()) {
    tensors[spec.name] =
        NamedTensor::Of(spec.shape, flat.subspan(spec.offset, spec.size));
  }
  return tensors;
}

}  // namespace

NamedTensors ValueTensors(const Parameters& parameters) {
  return TensorsOf(parameters, parameters.values());
}

NamedTensors GradientTensors(const Parameters& parameters) {
  return TensorsOf(parameters, parameters.gradients());
}

NamedTensors BufferTensors(const Buffers& buffers) {
  NamedTensors tensors;
  for (int i = 0; i < buffers.count(); ++i) {
    const BufferSpec& spec = buffers.specs()[i];
    if (spec.type == DataType::kFloat32) {
      tensors[spec.name] = NamedTensor::Of(spec.shape, buffers.value(i));
    } else {
      const int64_t counter = buffers.counter(i);
      tensors[spec.name] = NamedTensor::Of(spec.shape, std::span(&counter, 1));
    }
  }
  return tensors;
}

absl::Status LoadTensors(const NamedTensors& tensors, absl::string_view file,
                         Parameters& parameters, Buffers& buffers) {
  const std::map<std::string, Target> targets = TargetsOf(parameters, buffers);
  LOCKSTEP_RETURN_IF_ERROR(CheckTensors(tensors, targets, file));
  for (const auto& [name, target] : targets) {
    const std::vector<std::byte>& data = tensors.at(name).data;
    std::copy(data.begin(), data.end(), target.bytes.begin());
  }
  return absl::OkStatus();
}

}  // namespace lockstep
