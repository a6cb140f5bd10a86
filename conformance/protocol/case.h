// A case of PROTOCOL.md: what a trainer is asked to do.
#ifndef LOCKSTEP_CONFORMANCE_PROTOCOL_CASE_H_
#define LOCKSTEP_CONFORMANCE_PROTOCOL_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {

// case.json; the fields are its keys, and PROTOCOL.md says what they mean.
struct Case {
  std::string name = {};
  std::string model = {};           // "lenet" or "lenet_bn", or a user's own.
  std::string batch_norm = "none";  // "none", "sync" or "local".
  std::vector<std::string> unused = {};
  std::vector<std::string> frozen = {};
  std::string dtype = "float32";  // Or "bfloat16".
  double learning_rate = 0.05;
  double momentum = 0;
  double weight_decay = 0;
  // By rank; none negative, their sum > 0.
  std::vector<int64_t> batch_sizes = {};
  int64_t accumulate = 1;
  int64_t epochs = 1;
  bool shuffle = false;
  int64_t seed = 0;
  bool resume = false;
  int64_t stop_after = 0;
  bool evaluate = false;
  std::vector<int64_t> write_gradients = {};  // Steps, from 1, ascending.
  std::vector<int64_t> write_state = {};      // The same.

  friend bool operator==(const Case&, const Case&) = default;

  int world_size() const { return static_cast<int>(batch_sizes.size()); }
  int64_t global_batch() const;
};

// The files beside case.json.
struct CaseFiles {
  Safetensors weights;  // Parameters and buffers to start from.
  Safetensors data;     // train.images, train.labels, test.images, test.labels.
};

// case.json between memory and text. `path` stands for the file in errors.
// Errors: kDataLoss, with the path and the key, if the text is not JSON, or a
// key is missing, unknown or has a value that it cannot have.
absl::StatusOr<Case> ParseCase(const std::string& text,
                               const std::string& path);
std::string FormatCase(const Case& c);

// The whole folder. Errors: those of ParseCase and of ReadSafetensors.
struct CaseFolder {
  Case c;
  CaseFiles files;
};
absl::StatusOr<CaseFolder> ReadCaseFolder(const std::string& folder);

// Writes the three files into a folder that exists. Errors: the file system's.
absl::Status WriteCaseFolder(const std::string& folder, const Case& c,
                             const CaseFiles& files);

// The folders of LOCKSTEP_CASE and LOCKSTEP_OUTPUT. Errors:
// kFailedPrecondition, naming the variable, if one is not set.
struct CaseEnvironment {
  std::string case_folder;
  std::string output_folder;
};
absl::StatusOr<CaseEnvironment> ReadCaseEnvironment();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_PROTOCOL_CASE_H_
