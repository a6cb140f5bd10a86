#include "conformance/protocol/rank_output.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "conformance/protocol/json_fields.h"
#include "models/io/safetensors.h"
#include "nlohmann/json.hpp"

namespace lockstep::conformance {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostInt64 = std::numeric_limits<int64_t>::max();

std::string PathOf(const std::string& folder, int rank, const char* ending) {
  return absl::StrCat(folder, "/rank", rank, ending);
}

StepOutput ReadStep(const nlohmann::json& json, const std::string& path,
                    size_t number, absl::Status& status) {
  JsonFields fields(json, path, absl::StrCat("steps[", number, "]"));
  StepOutput step;
  step.epoch = fields.Integer("epoch", 0, kMostInt64);
  step.indices = fields.Integers("indices", 0, kMostInt64);
  if (!fields.IsNull("loss")) step.loss = fields.AnyNumber("loss");
  status.Update(fields.Finish());
  return step;
}

EvaluationOutput ReadEvaluation(JsonFields& fields) {
  JsonFields evaluation = fields.Object("evaluation");
  EvaluationOutput output;
  output.indices = evaluation.Integers("indices", 0, kMostInt64);
  output.loss = evaluation.AnyNumber("loss");
  output.accuracy = evaluation.AnyNumber("accuracy");
  output.count = evaluation.Integer("count", 0, kMostInt64);
  fields.Check(evaluation.Finish());
  return output;
}

// JSON numbers can be neither NaN nor infinite.
Json NumberJson(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

Json StepJson(const StepOutput& step) {
  return {{"epoch", step.epoch},
          {"indices", step.indices},
          {"loss", step.loss.has_value() ? NumberJson(*step.loss) : Json()}};
}

Json EvaluationJson(const EvaluationOutput& evaluation) {
  return {{"indices", evaluation.indices},
          {"loss", NumberJson(evaluation.loss)},
          {"accuracy", NumberJson(evaluation.accuracy)},
          {"count", evaluation.count}};
}

// Returns whether a name is "gradient.<step>/<name>", "parameter.<step>/<name>"
// or "buffer.<step>/<name>".
bool IsTensorName(absl::string_view name) {
  const size_t dot = name.find('.');
  const size_t slash = name.find('/');
  if (dot == name.npos || slash == name.npos || slash < dot) return false;
  const absl::string_view kind = name.substr(0, dot);
  const absl::string_view step = name.substr(dot + 1, slash - dot - 1);
  // A step of a case has at most ten digits.
  if (step.empty() || step.size() > 10 || step[0] == '0') return false;
  for (const char c : step) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return (kind == "gradient" || kind == "parameter" || kind == "buffer") &&
         slash + 1 < name.size();
}

absl::StatusOr<NamedTensors> ReadTensors(const std::string& path) {
  const absl::StatusOr<std::string> bytes =
      ReadForeignFile(path, kMaxTensorBytes);
  if (absl::IsNotFound(bytes.status())) {
    return absl::DataLossError(
        absl::StrCat(path, ": is missing, though the JSON beside it is there"));
  }
  LOCKSTEP_RETURN_IF_ERROR(bytes.status());
  absl::StatusOr<Safetensors> content = ParseSafetensors(*bytes, path);
  if (!content.ok()) {  // Includes types that DataType lacks.
    return absl::DataLossError(content.status().message());
  }
  for (const auto& [name, tensor] : content->tensors) {
    if (IsTensorName(name)) continue;
    return absl::DataLossError(absl::StrCat(
        path, ": tensor '", absl::CHexEscape(name.substr(0, 60)),
        "' is not named gradient.<step>/<name>, parameter.<step>/<name> or "
        "buffer.<step>/<name>"));
  }
  return std::move(content->tensors);
}

}  // namespace

absl::StatusOr<RankOutput> ParseRankOutput(const std::string& text,
                                           const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const nlohmann::json json,
                            ParseForeignJson(text, path));
  JsonFields fields(json, path);
  RankOutput output;
  fields.Integer("protocol", kProtocol, kProtocol);
  output.world_size =
      static_cast<int>(fields.Integer("world_size", 1, kMaxRanksOfCase));
  output.rank =
      static_cast<int>(fields.Integer("rank", 0, output.world_size - 1));
  if (fields.Has("unsupported")) {
    output.unsupported = fields.Text("unsupported");
    LOCKSTEP_RETURN_IF_ERROR(fields.Finish());
    return output;
  }
  output.software = fields.Text("software");
  const nlohmann::json& steps = fields.Array("steps");
  absl::Status status;
  for (size_t i = 0; i < steps.size() && status.ok(); ++i) {
    output.steps.push_back(ReadStep(steps[i], path, i, status));
  }
  fields.Check(status);
  if (!fields.IsNull("evaluation")) output.evaluation = ReadEvaluation(fields);
  LOCKSTEP_RETURN_IF_ERROR(fields.Finish());
  return output;
}

std::string FormatRankOutput(const RankOutput& output) {
  Json json = {{"protocol", kProtocol},
               {"rank", output.rank},
               {"world_size", output.world_size}};
  if (output.unsupported.has_value()) {
    json["unsupported"] = *output.unsupported;
  } else {
    json["software"] = output.software;
    json["steps"] = Json::array();
    for (const StepOutput& step : output.steps) {
      json["steps"].push_back(StepJson(step));
    }
    json["evaluation"] = output.evaluation.has_value()
                             ? EvaluationJson(*output.evaluation)
                             : Json();
  }
  return FormatJson(json, /*indent=*/-1);
}

absl::StatusOr<RankOutput> ReadRankOutput(const std::string& folder, int rank) {
  const std::string path = PathOf(folder, rank, ".json");
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string text,
                            ReadForeignFile(path, kMaxJsonBytes));
  LOCKSTEP_ASSIGN_OR_RETURN(RankOutput output, ParseRankOutput(text, path));
  if (output.rank != rank) {
    return absl::DataLossError(
        absl::StrCat(path, ": says that it is rank ", output.rank, "'s"));
  }
  if (output.unsupported.has_value()) return output;
  LOCKSTEP_ASSIGN_OR_RETURN(output.tensors,
                            ReadTensors(PathOf(folder, rank, ".safetensors")));
  return output;
}

absl::Status WriteRankOutput(const std::string& folder,
                             const RankOutput& output) {
  if (!output.unsupported.has_value()) {
    LOCKSTEP_RETURN_IF_ERROR(
        WriteSafetensors(PathOf(folder, output.rank, ".safetensors"),
                         {.metadata = {}, .tensors = output.tensors}));
  }
  return ReplaceFile(PathOf(folder, output.rank, ".json"),
                     FormatRankOutput(output));
}

}  // namespace lockstep::conformance
