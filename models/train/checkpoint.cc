#include "models/train/checkpoint.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/fnv1a.h"
#include "base/status_macros.h"
#include "models/cpu/algorithm.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/optimizer.h"

namespace lockstep {
namespace {

constexpr char kModel[] = "model";
constexpr char kSeed[] = "seed";
constexpr char kEpochs[] = "epochs";
constexpr char kConvolution[] = "convolution";  // Absent in older files.
// The rest is absent if the optimizer is plain SGD.
constexpr char kOptimizer[] = "optimizer";
constexpr char kStateHash[] = "optimizer_state";

constexpr char kSteps[] = "step";  // The tensor's name.

// The optimizer's numbers, under the names of their flags and metadata.
struct NumberOption {
  const char* name;
  double OptimizerOptions::*value;
};
constexpr NumberOption kNumbers[] = {
    {"momentum", &OptimizerOptions::momentum},
    {"weight_decay", &OptimizerOptions::weight_decay},
    {"adam_beta1", &OptimizerOptions::beta1},
    {"adam_beta2", &OptimizerOptions::beta2},
    {"adam_epsilon", &OptimizerOptions::epsilon},
};

using Metadata = std::map<std::string, std::string>;

void AddOptimizer(const CheckpointInfo& info, Metadata& metadata) {
  if (info.optimizer.IsPlainSgd()) return;
  metadata[kOptimizer] = Name(info.optimizer.kind);
  for (const NumberOption& number : kNumbers) {
    metadata[number.name] = ShortestDigits(info.optimizer.*number.value);
  }
  if (!info.state_hash.empty()) metadata[kStateHash] = info.state_hash;
}

// Reads what AddOptimizer writes. Returns false if the metadata is damaged.
bool ReadOptimizer(const Metadata& metadata, CheckpointInfo& info) {
  const auto kind = metadata.find(kOptimizer);
  if (kind == metadata.end()) return true;
  if (kind->second == Name(OptimizerKind::kAdamW)) {
    info.optimizer.kind = OptimizerKind::kAdamW;
  } else if (kind->second != Name(OptimizerKind::kSgd)) {
    return false;
  }
  for (const NumberOption& number : kNumbers) {
    const auto found = metadata.find(number.name);
    if (found == metadata.end() ||
        !absl::SimpleAtod(found->second, &(info.optimizer.*number.value))) {
      return false;
    }
  }
  const auto hash = metadata.find(kStateHash);
  if (hash != metadata.end()) info.state_hash = hash->second;
  const size_t digits = StateNames(info.optimizer).empty() ? 0 : 16;
  return CheckOptimizer(info.optimizer).ok() &&
         info.state_hash.size() == digits &&
         std::ranges::all_of(info.state_hash, absl::ascii_isxdigit);
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
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": is not a checkpoint: its metadata lacks a model, a "
                     "seed or a number of epochs"));
  }
  info.model = absl::Utf8SafeCEscape(model->second);
  if (const auto found = metadata.find(kConvolution); found != metadata.end()) {
    const auto convolution = ConvolutionNamed(found->second);
    if (!convolution.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": its metadata's convolution ",
                       convolution.status().message()));
    }
    info.convolution = *convolution;
  }
  if (!ReadOptimizer(metadata, info)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": its metadata's optimizer is not one of this program's"));
  }
  return info;
}

// Returns the path of the state's file of the checkpoint at `path`.
std::string StatePath(const std::string& path, const std::string& hash) {
  const std::filesystem::path folder =
      std::filesystem::path(path).parent_path();
  return (folder / absl::StrCat("optimizer.", hash, ".safetensors")).string();
}

std::string HashOf(const std::string& bytes) {
  return absl::StrFormat("%016x", Fnv1a(bytes));
}

// The arrays of a state as one set of parameters, array after array.
Parameters StateParameters(const OptimizerOptions& options,
                           const Parameters& parameters) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (const char* const array : StateNames(options)) {
    for (const ParameterSpec& spec : parameters.specs()) {
      shapes.emplace_back(absl::StrCat(spec.name, ".", array), spec.shape);
    }
  }
  return Parameters(std::move(shapes));
}

// Writes the state's file. Returns its hash.
absl::StatusOr<std::string> SaveState(const std::string& path,
                                      const OptimizerOptions& options,
                                      const Parameters& parameters,
                                      const OptimizerState& state) {
  Parameters arrays = StateParameters(options, parameters);
  auto to = arrays.values().begin();
  for (const std::vector<float>& array : state.arrays) {
    to = std::ranges::copy(array, to).out;
  }
  Safetensors content;
  content.tensors = ValueTensors(arrays);
  content.tensors[kSteps] =
      NamedTensor::Of<int64_t>({}, std::span(&state.steps, 1));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes,
                            SerializeSafetensors(content));
  std::string hash = HashOf(bytes);
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(StatePath(path, hash), bytes));
  return hash;
}

// Returns the hash in the name of a state's file; empty for another file.
std::string HashInName(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  absl::string_view hash = name;
  const bool is_state =
      absl::ConsumePrefix(&hash, "optimizer.") &&
      absl::ConsumeSuffix(&hash, ".safetensors") && hash.size() == 16 &&
      hash.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
  return is_state ? std::string(hash) : "";
}

// Removes the states in the folder of `path` that no checkpoint there names.
void RemoveUnusedStates(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  std::vector<std::filesystem::path> states, others;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!HashInName(entry.path()).empty()) {
      states.push_back(entry.path());
    } else if (entry.path().extension() == ".safetensors") {
      others.push_back(entry.path());
    }
  }
  if (states.empty()) return;
  std::set<std::string> used;
  for (const std::filesystem::path& other : others) {
    const absl::StatusOr<CheckpointInfo> info = ReadInfo(other.string());
    if (info.ok()) used.insert(info->state_hash);
  }
  for (const std::filesystem::path& state : states) {
    if (!used.contains(HashInName(state))) {
      std::filesystem::remove(state, error);
    }
  }
}

}  // namespace

std::string ShortestDigits(double value) {
  for (int digits = 6; digits < 17; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    double read = 0;
    if (absl::SimpleAtod(text, &read) && read == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

absl::Status SaveCheckpoint(const std::string& path, CheckpointInfo info,
                            const Parameters& parameters,
                            const Buffers& buffers,
                            const OptimizerState& state) {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckState(info.optimizer, std::ssize(parameters.values()), state));
  info.state_hash.clear();
  if (!StateNames(info.optimizer).empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        info.state_hash, SaveState(path, info.optimizer, parameters, state));
  }
  Safetensors content;
  content.metadata = {{kModel, info.model},
                      {kSeed, absl::StrCat(info.seed)},
                      {kEpochs, absl::StrCat(info.epochs)},
                      {kConvolution, Name(info.convolution)}};
  AddOptimizer(info, content.metadata);
  content.tensors = ValueTensors(parameters);
  content.tensors.merge(BufferTensors(buffers));
  LOCKSTEP_RETURN_IF_ERROR(WriteSafetensors(path, content));
  RemoveUnusedStates(path);
  return absl::OkStatus();
}

absl::StatusOr<CheckpointInfo> ReadInfo(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors content, ReadSafetensors(path));
  return InfoOf(content, path);
}

absl::StatusOr<CheckpointInfo> LoadCheckpoint(const std::string& path,
                                              Parameters& parameters,
                                              Buffers& buffers) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors content, ReadSafetensors(path));
  LOCKSTEP_ASSIGN_OR_RETURN(CheckpointInfo info, InfoOf(content, path));
  LOCKSTEP_RETURN_IF_ERROR(
      LoadTensors(content.tensors, path, parameters, buffers));
  return info;
}

absl::StatusOr<OptimizerState> LoadOptimizerState(
    const std::string& path, const CheckpointInfo& info,
    const Parameters& parameters) {
  OptimizerState state;
  const size_t count = StateNames(info.optimizer).size();
  if (count == 0) return state;
  const std::string file = StatePath(path, info.state_hash);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file));
  if (HashOf(bytes) != info.state_hash) {
    return absl::DataLossError(absl::StrCat(
        file, ": is not the optimizer's state that ", path,
        " was saved with: its bytes have the hash ", HashOf(bytes)));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors content,
                            ParseSafetensors(bytes, file));
  Parameters arrays = StateParameters(info.optimizer, parameters);
  Buffers counters;
  const int steps = counters.AddCounter(kSteps);
  LOCKSTEP_RETURN_IF_ERROR(
      LoadTensors(content.tensors, file, arrays, counters));
  state.steps = counters.counter(steps);
  const std::span<const float> values = arrays.values();
  const size_t size = values.size() / count;
  for (size_t i = 0; i < count; ++i) {
    const std::span<const float> array = values.subspan(i * size, size);
    state.arrays.emplace_back(array.begin(), array.end());
  }
  return state;
}

absl::Status CheckSameOptimizer(const std::string& path,
                                const CheckpointInfo& info,
                                const OptimizerOptions& options) {
  if (info.optimizer.kind != options.kind) {
    return FlagError("optimizer", Name(options.kind),
                     absl::StrCat(path, " comes from a run with --optimizer=",
                                  Name(info.optimizer.kind)));
  }
  for (const NumberOption& number : kNumbers) {
    const double theirs = info.optimizer.*number.value;
    const double ours = options.*number.value;
    if (ours == theirs) continue;
    return FlagError(number.name, ShortestDigits(ours),
                     absl::StrCat(path, " comes from a run with --",
                                  number.name, "=", ShortestDigits(theirs)));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
