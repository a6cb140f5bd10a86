#include "conformance/protocol/case.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "conformance/protocol/json_fields.h"
#include "models/io/safetensors.h"
#include "nlohmann/json.hpp"

namespace lockstep::conformance {
namespace {

// The largest number of samples in a step, of steps, and of epochs.
constexpr int64_t kMostCount = 1'000'000'000;

// The names of the files in a case's folder.
constexpr char kCase[] = "/case.json";
constexpr char kWeights[] = "/weights.safetensors";
constexpr char kData[] = "/data.safetensors";

void ReadOptimizer(JsonFields& fields, Case& c) {
  JsonFields optimizer = fields.Object("optimizer");
  optimizer.OneOf("name", {"sgd"});
  c.learning_rate = optimizer.Number("learning_rate", 0);
  c.momentum = optimizer.Number("momentum", 0);
  c.weight_decay = optimizer.Number("weight_decay", 0);
  fields.Check(optimizer.Finish());
}

void ReadBatchSizes(JsonFields& fields, Case& c) {
  c.batch_sizes = fields.Integers("batch_sizes", 0, kMostCount);
  if (c.batch_sizes.empty() || c.batch_sizes.size() > kMaxRanksOfCase) {
    fields.Fail("batch_sizes",
                absl::StrCat("has ", c.batch_sizes.size(), " numbers; 1 to ",
                             kMaxRanksOfCase));
  }
  int64_t sum = 0;
  for (const int64_t size : c.batch_sizes) sum += size;
  if (sum == 0) fields.Fail("batch_sizes", "are all 0");
}

// Reads step numbers, which must ascend.
std::vector<int64_t> ReadSteps(JsonFields& write, const char* key) {
  std::vector<int64_t> steps = write.Integers(key, 1, kMostCount);
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i - 1] >= steps[i]) {
      write.Fail(key, absl::StrCat("has ", steps[i], " after ", steps[i - 1]));
      break;
    }
  }
  return steps;
}

void ReadWrite(JsonFields& fields, Case& c) {
  JsonFields write = fields.Object("write");
  c.write_gradients = ReadSteps(write, "gradients");
  c.write_state = ReadSteps(write, "state");
  fields.Check(write.Finish());
}

absl::StatusOr<Safetensors> ReadTensors(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes,
                            ReadForeignFile(path, kMaxTensorBytes));
  return ParseSafetensors(bytes, path);
}

absl::StatusOr<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value != nullptr && *value != '\0') return std::string(value);
  return absl::FailedPreconditionError(
      absl::StrCat(name, " is not set; //conformance:check sets it"));
}

}  // namespace

int64_t Case::global_batch() const {
  return std::accumulate(batch_sizes.begin(), batch_sizes.end(), int64_t{0});
}

absl::StatusOr<Case> ParseCase(const std::string& text,
                               const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const nlohmann::json json,
                            ParseForeignJson(text, path));
  JsonFields fields(json, path);
  Case c;
  fields.Integer("protocol", kProtocol, kProtocol);
  c.name = fields.Text("name");
  c.model = fields.Text("model");
  if (c.name.empty()) fields.Fail("name", "is empty");
  if (c.model.empty()) fields.Fail("model", "is empty");
  c.batch_norm = fields.OneOf("batch_norm", {"none", "sync", "local"});
  c.unused = fields.Names("unused");
  c.frozen = fields.Names("frozen");
  c.dtype = fields.OneOf("dtype", {"float32", "bfloat16"});
  ReadOptimizer(fields, c);
  ReadBatchSizes(fields, c);
  c.accumulate = fields.Integer("accumulate", 1, kMostCount);
  c.epochs = fields.Integer("epochs", 0, kMostCount);
  c.shuffle = fields.Bool("shuffle");
  c.seed = fields.Integer("seed", 0, std::numeric_limits<int64_t>::max());
  c.resume = fields.Bool("resume");
  c.stop_after = fields.Integer("stop_after", 0, kMostCount);
  c.evaluate = fields.Bool("evaluate");
  ReadWrite(fields, c);
  LOCKSTEP_RETURN_IF_ERROR(fields.Finish());
  return c;
}

std::string FormatCase(const Case& c) {
  return FormatJson(
      {{"protocol", kProtocol},
       {"name", c.name},
       {"model", c.model},
       {"batch_norm", c.batch_norm},
       {"unused", c.unused},
       {"frozen", c.frozen},
       {"dtype", c.dtype},
       {"optimizer",
        {{"name", "sgd"},
         {"learning_rate", c.learning_rate},
         {"momentum", c.momentum},
         {"weight_decay", c.weight_decay}}},
       {"batch_sizes", c.batch_sizes},
       {"accumulate", c.accumulate},
       {"epochs", c.epochs},
       {"shuffle", c.shuffle},
       {"seed", c.seed},
       {"resume", c.resume},
       {"stop_after", c.stop_after},
       {"evaluate", c.evaluate},
       {"write", {{"gradients", c.write_gradients}, {"state", c.write_state}}}},
      /*indent=*/1);
}

absl::StatusOr<CaseFolder> ReadCaseFolder(const std::string& folder) {
  CaseFolder result;
  const std::string path = folder + kCase;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string text,
                            ReadForeignFile(path, kMaxJsonBytes));
  LOCKSTEP_ASSIGN_OR_RETURN(result.c, ParseCase(text, path));
  LOCKSTEP_ASSIGN_OR_RETURN(result.files.weights,
                            ReadTensors(folder + kWeights));
  LOCKSTEP_ASSIGN_OR_RETURN(result.files.data, ReadTensors(folder + kData));
  return result;
}

absl::Status WriteCaseFolder(const std::string& folder, const Case& c,
                             const CaseFiles& files) {
  LOCKSTEP_RETURN_IF_ERROR(WriteSafetensors(folder + kWeights, files.weights));
  LOCKSTEP_RETURN_IF_ERROR(WriteSafetensors(folder + kData, files.data));
  return ReplaceFile(folder + kCase, FormatCase(c));
}

absl::StatusOr<CaseEnvironment> ReadCaseEnvironment() {
  CaseEnvironment environment;
  LOCKSTEP_ASSIGN_OR_RETURN(environment.case_folder, Variable("LOCKSTEP_CASE"));
  LOCKSTEP_ASSIGN_OR_RETURN(environment.output_folder,
                            Variable("LOCKSTEP_OUTPUT"));
  return environment;
}

}  // namespace lockstep::conformance
