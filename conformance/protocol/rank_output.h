// What one rank of a judged trainer writes (PROTOCOL.md).
#ifndef LOCKSTEP_CONFORMANCE_PROTOCOL_RANK_OUTPUT_H_
#define LOCKSTEP_CONFORMANCE_PROTOCOL_RANK_OUTPUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {

struct StepOutput {
  int64_t epoch = 0;
  std::vector<int64_t> indices = {};  // Of this rank, in the order computed.
  std::optional<double> loss = {};    // Mean over them; may be NaN or infinite.

  friend bool operator==(const StepOutput&, const StepOutput&) = default;
};

struct EvaluationOutput {
  std::vector<int64_t> indices = {};  // Of this rank.
  // What the rank reports for the whole set.
  double loss = 0;
  double accuracy = 0;
  int64_t count = 0;

  friend bool operator==(const EvaluationOutput&,
                         const EvaluationOutput&) = default;
};

struct RankOutput {
  int rank = 0;
  int world_size = 1;
  std::string software = {};
  // Why the rank cannot run the case; then it wrote nothing else.
  std::optional<std::string> unsupported = {};
  std::vector<StepOutput> steps = {};
  std::optional<EvaluationOutput> evaluation = {};
  // By the file's names: "gradient.1/W1", "parameter.2/b1", ...
  NamedTensors tensors = {};

  friend bool operator==(const RankOutput&, const RankOutput&) = default;
};

// rank<r>.json between memory and text, without the tensors. `path` stands for
// the file in errors. Errors: kDataLoss, with the path and the key.
absl::StatusOr<RankOutput> ParseRankOutput(const std::string& text,
                                           const std::string& path);
std::string FormatRankOutput(const RankOutput& output);

// rank<r>.json and rank<r>.safetensors of `folder`. The tensors are not read
// where `unsupported` is set. Errors, with the path: kNotFound if there is no
// rank<r>.json; kDataLoss if a file breaks its format, or is another rank's.
absl::StatusOr<RankOutput> ReadRankOutput(const std::string& folder, int rank);

// Writes both files, the JSON last, each as ReplaceFile does. Errors: the file
// system's.
absl::Status WriteRankOutput(const std::string& folder,
                             const RankOutput& output);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_PROTOCOL_RANK_OUTPUT_H_
