// A case of PROTOCOL.md: the task that a trainer is given.
#ifndef LOCKSTEP_CONFORMANCE_PROTOCOL_CASE_H_
#define LOCKSTEP_CONFORMANCE_PROTOCOL_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {

// The contents of case.json. The fields are its keys; PROTOCOL.md defines them.
struct Case {
  std::string name = {};
  std::string model = {};           // "lenet", "lenet_bn" or a user's own.
  std::string batch_norm = "none";  // "none", "sync" or "local".
  std::vector<std::string> unused = {};
  std::vector<std::string> frozen = {};
  std::string dtype = "float32";  // Or "bfloat16".
  double learning_rate = 0.05;
  double momentum = 0;
  double weight_decay = 0;
  // By rank; none negative, with a positive sum.
  std::vector<int64_t> batch_sizes = {};
  int64_t accumulate = 1;
  int64_t epochs = 1;
  bool shuffle = false;
  int64_t seed = 0;
  bool resume = false;
  int64_t stop_after = 0;
  bool evaluate = false;
  std::vector<int64_t> write_gradients = {};  // Steps, from 1, ascending.
  std::vector<int64_t> write_state = {};      // Steps, from 1, ascending.

  friend bool operator==(const Case&, const Case&) = default;

  int world_size() const { return static_cast<int>(batch_sizes.size()); }
  int64_t global_batch() const;
};

// The files beside case.json.
struct CaseFiles {
  Safetensors weights;  // The initial parameters and buffers.
  Safetensors data;     // train.images, train.labels, test.images, test.labels.
};

// Convert between case.json's text and a Case. `path` names the file in errors.
// Errors: kDataLoss, with the path and the key, if the text is not JSON, or a
// key is missing, unknown or has an invalid value.
absl::StatusOr<Case> ParseCase(const std::string& text,
                               const std::string& path);
std::string FormatCase(const Case& c);

// The contents of a case's folder.
struct CaseFolder {
  Case c;
  CaseFiles files;
};
// Reads a case's folder. Errors: those of ParseCase and of ReadSafetensors.
absl::StatusOr<CaseFolder> ReadCaseFolder(const std::string& folder);

// Writes the three files into an existing folder. Errors: the file system's.
absl::Status WriteCaseFolder(const std::string& folder, const Case& c,
                             const CaseFiles& files);

// The folders that LOCKSTEP_CASE and LOCKSTEP_OUTPUT name.
struct CaseEnvironment {
  std::string case_folder;
  std::string output_folder;
};
// Reads both variables. Errors: kFailedPrecondition, naming the variable, if
// one is not set.
absl::StatusOr<CaseEnvironment> ReadCaseEnvironment();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_PROTOCOL_CASE_H_
