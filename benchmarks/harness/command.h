// Writes a benchmark's report: the flags --output_dir, --json and
// --require_bars.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_COMMAND_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_COMMAND_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/harness/load.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// The flags of the report, for a section of the usage, and the words that
// replace those in braces in their help. `folder`: the default of --output_dir,
// or "" if the command writes no folder by default.
inline constexpr char kOutputFlags[] =
    "output_dir=DIR json=FILE require_bars=false";
std::vector<std::pair<std::string, std::string>> OutputWords(
    const std::string& name, const std::string& folder);

// The places where a report will be written.
struct ReportOutput {
  // Reads the flags, and finds before a long run what would otherwise fail at
  // its end. folder: as in OutputWords. Errors: kInvalidArgument, beginning
  // with --json; kPermissionDenied, beginning with --output_dir.
  static absl::StatusOr<ReportOutput> Create(const std::string& name,
                                             const std::string& folder);

  // Writes the JSON to --json, and NAME.json, NAME.html and NAME.md to
  // --output_dir, each if there is one, and says so on standard output. Errors:
  // the file system's; with --require_bars kFailedPrecondition for a bar that
  // was measured and judged and is not met.
  absl::Status Write(const report::Document& document) const;

  LoadMeter load;  // Since Create; for AddLoad.
  std::string name;
  std::string json;    // As the user typed it; empty for none.
  std::string folder;  // Empty for none.
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_COMMAND_H_
