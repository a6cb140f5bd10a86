// What the benchmarks' commands have in common: where their report is from,
// and the flags --json, --output_dir and --require_bars, which say what becomes
// of it.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_COMMAND_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_COMMAND_H_

#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// The part of a command's usage that is about those flags. `folder`: what
// --output_dir is by default; "" for a command that writes no folder then.
std::string OutputUsage(const std::string& name, const std::string& folder);

// This machine, now. `name`: the command's, "scaling".
report::Origin OriginOf(const std::string& name, std::span<char* const> argv);

// Where a report will be written.
class ReportOutput {
 public:
  // Reads the flags, and finds out before a long run what would otherwise fail
  // at its end. folder: as OutputUsage's. Errors: kInvalidArgument, beginning
  // with --json; kPermissionDenied, beginning with --output_dir.
  static absl::StatusOr<ReportOutput> Create(const std::string& name,
                                             const std::string& folder);

  // Writes the JSON to --json, and NAME.json, NAME.html and NAME.md to
  // --output_dir, each if there is one, and says so on standard output. Errors:
  // the file system's; with --require_bars kFailedPrecondition for a bar that
  // was measured and is not met.
  absl::Status Write(const report::Document& document) const;

 private:
  ReportOutput(std::string name, std::string json, std::string folder)
      : name_(std::move(name)),
        json_(std::move(json)),
        folder_(std::move(folder)) {}

  std::string name_;
  std::string json_;    // As its user typed it; empty for none.
  std::string folder_;  // Empty for none.
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_COMMAND_H_
