// The output of one rank of a judged trainer (PROTOCOL.md).
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
  std::vector<int64_t> indices = {};  // This rank's, in the order of
                                      // computation.
  std::optional<double> loss = {};  // The mean over `indices`; NaN and infinity
                                    // are valid.

  friend bool operator==(const StepOutput&, const StepOutput&) = default;
};

struct EvaluationOutput {
  std::vector<int64_t> indices = {};  // This rank's.
  // The values that the rank reports for the whole test set.
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
  // The reason why the rank cannot run the case. If set, the rank wrote nothing
  // else.
  std::optional<std::string> unsupported = {};
  std::vector<StepOutput> steps = {};
  std::optional<EvaluationOutput> evaluation = {};
  // Keyed by the file's names: "gradient.1/W1", "parameter.2/b1", ...
  NamedTensors tensors = {};

  friend bool operator==(const RankOutput&, const RankOutput&) = default;
};

// Convert between the text of rank<r>.json and a RankOutput, without the
// tensors. `path` names the file in errors. Errors: kDataLoss, with the path
// and the key.
absl::StatusOr<RankOutput> ParseRankOutput(const std::string& text,
                                           const std::string& path);
std::string FormatRankOutput(const RankOutput& output);

// Reads rank<r>.json and rank<r>.safetensors of `folder`. If `unsupported` is
// set, the tensors are not read. Errors, with the path: kNotFound if there is
// no rank<r>.json; kDataLoss if a file breaks its format or belongs to another
// rank.
absl::StatusOr<RankOutput> ReadRankOutput(const std::string& folder, int rank);

// Writes both files, the JSON last. Each file is replaced atomically
// (ReplaceFile). Errors: the file system's.
absl::Status WriteRankOutput(const std::string& folder,
                             const RankOutput& output);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_PROTOCOL_RANK_OUTPUT_H_
