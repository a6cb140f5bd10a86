// Checkpoints as safetensors files.
#include "models/checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "collectives/data_type.h"
#include "models/parameters.h"
#include "models/safetensors.h"

namespace lockstep {
namespace {

constexpr char kModel[] = "model";
constexpr char kSeed[] = "seed";
constexpr char kEpochs[] = "epochs";

absl::Status Unfit(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<CheckpointInfo> InfoOf(const Safetensors& content,
                                      const std::string& path) {
  const auto& metadata = content.metadata;
  const auto model = metadata.find(kModel);
  const auto seed = metadata.find(kSeed);
  const auto epochs = metadata.find(kEpochs);
  CheckpointInfo info;
  if (model == metadata.end() || seed == metadata.end() ||
      epochs == metadata.end() || !absl::SimpleAtoi(seed->second, &info.seed) ||
      !absl::SimpleAtoi(epochs->second, &info.epochs) || info.epochs < 0) {
    return Unfit(path,
                 "is no checkpoint: its metadata lacks a model, a seed or a "
                 "number of epochs");
  }
  info.model = absl::Utf8SafeCEscape(model->second);
  return info;
}

absl::Status CheckTensors(const std::map<std::string, NamedTensor>& tensors,
                          const Parameters& parameters,
                          const std::string& path) {
  for (const ParameterSpec& spec : parameters.specs()) {
    const auto found = tensors.find(spec.name);
    if (found == tensors.end()) {
      return Unfit(path, absl::StrCat("has no tensor '", spec.name, "'"));
    }
    if (found->second.type != DataType::kFloat32 ||
        found->second.shape != spec.shape) {
      return Unfit(path, absl::StrCat("tensor '", spec.name,
                                      "' has not the model's shape and type"));
    }
  }
  if (tensors.size() != parameters.specs().size()) {
    return Unfit(
        path, absl::StrCat("has ", tensors.size(), " tensors, the model has ",
                           parameters.specs().size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveCheckpoint(const std::string& path, const CheckpointInfo& info,
                            const Parameters& parameters) {
  Safetensors content;
  content.metadata = {{kModel, info.model},
                      {kSeed, absl::StrCat(info.seed)},
                      {kEpochs, absl::StrCat(info.epochs)}};
  for (int i = 0; i < parameters.count(); ++i) {
    const ParameterSpec& spec = parameters.specs()[i];
    const auto bytes = std::as_bytes(parameters.value(i));
    content.tensors[spec.name] = {
        DataType::kFloat32, spec.shape, {bytes.begin(), bytes.end()}};
  }
  return WriteSafetensors(path, content);
}

absl::StatusOr<CheckpointInfo> ReadCheckpointInfo(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors content, ReadSafetensors(path));
  return InfoOf(content, path);
}

absl::StatusOr<CheckpointInfo> LoadCheckpoint(const std::string& path,
                                              Parameters& parameters) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors content, ReadSafetensors(path));
  LOCKSTEP_ASSIGN_OR_RETURN(const CheckpointInfo info, InfoOf(content, path));
  LOCKSTEP_RETURN_IF_ERROR(CheckTensors(content.tensors, parameters, path));
  for (int i = 0; i < parameters.count(); ++i) {
    const NamedTensor& tensor = content.tensors.at(parameters.specs()[i].name);
    std::copy(tensor.data.begin(), tensor.data.end(),
              std::as_writable_bytes(parameters.value(i)).begin());
  }
  return info;
}

}  // namespace lockstep
