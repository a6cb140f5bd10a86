#include "models/train/checkpoint.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "models/io/model_tensors.h"
#include "models/io/safetensors.h"
#include "models/model.h"

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

}  // namespace

absl::Status SaveCheckpoint(const std::string& path, const CheckpointInfo& info,
                            const Parameters& parameters,
                            const Buffers& buffers) {
  Safetensors content;
  content.metadata = {{kModel, info.model},
                      {kSeed, absl::StrCat(info.seed)},
                      {kEpochs, absl::StrCat(info.epochs)}};
  content.tensors = ValueTensors(parameters);
  content.tensors.merge(BufferTensors(buffers));
  return WriteSafetensors(path, content);
}

absl::StatusOr<CheckpointInfo> ReadCheckpointInfo(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors content, ReadSafetensors(path));
  return InfoOf(content, path);
}

absl::StatusOr<CheckpointInfo> LoadCheckpoint(const std::string& path,
                                              Parameters& parameters,
                                              Buffers& buffers) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors content, ReadSafetensors(path));
  LOCKSTEP_ASSIGN_OR_RETURN(const CheckpointInfo info, InfoOf(content, path));
  LOCKSTEP_RETURN_IF_ERROR(
      LoadTensors(content.tensors, path, parameters, buffers));
  return info;
}

}  // namespace lockstep
