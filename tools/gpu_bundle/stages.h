// Stages: the commands that the bundle runs, one after the other, each with a
// limit on its time; and their results.
#ifndef LOCKSTEP_TOOLS_GPU_BUNDLE_STAGES_H_
#define LOCKSTEP_TOOLS_GPU_BUNDLE_STAGES_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/subprocess.h"
#include "report/document.h"

namespace lockstep::gpu_bundle {

// A line of stages.txt. That file describes each part.
struct Stage {
  std::string name;
  std::vector<std::string> suites;
  absl::Duration least;
  absl::Duration most;
  std::vector<std::string> needs;
  std::vector<std::string> command;

  bool IsIn(absl::string_view suite) const;
};

// Parses stages.txt. Errors: kInvalidArgument, naming the line.
absl::StatusOr<std::vector<Stage>> ParseStages(absl::string_view text);

// The setting that the stages of one run share.
struct Setting {
  std::string bundle;  // The folder that has bin/ and peers/.
  std::string out;     // For logs and other files of stages.
  int gpus = 0;
  bool exclusive = false;         // A GPU is for one process alone.
  std::string python;             // "" if none has PyTorch.
  std::string compute_sanitizer;  // "" if there is none.
  bool has_data = false;
  Environment environment;
};

// Returns the first need of the stage that this host does not meet, such as "2
// GPUs"; "" if it meets all.
std::string MissingNeed(const Stage& stage, const Setting& setting);

enum class Outcome {
  kPassed,
  kFailed,
  kTimedOut,
  kSkipped,  // The stage ran, and skipped each of its tests.
  kNoBudget,
  kNeedsMissing,
};

struct StageResult {
  std::string name;
  std::vector<std::string> command;
  Outcome outcome = Outcome::kPassed;
  std::string why = {};  // One line; "" if there is nothing to say.
  double seconds = 0;
  // The numbers of GoogleTest cases; 0 and 0 for other programs.
  int tests = 0;
  int skipped = 0;
  std::vector<std::string> failed = {};
  std::string junit = {};      // <testsuite> elements.
  report::Value numbers = {};  // The file {json}; null if there is none.
};

// Returns "passed", "failed", "timed_out", "skipped", "no_budget" or "lacks".
const char* Name(Outcome outcome);

// Returns a text such as "passed", "FAILED: exit status 1", "not run: budget".
std::string Text(const StageResult& result);

// Returns the time that the stages need at least, one after the other, without
// those that this host does not have the means for.
absl::Duration LeastTime(std::span<const Stage> stages, const Setting& setting);

// Runs the stage with all its output in OUT/NAME.log. left: the time that is
// left. reserved: the part of it for later stages, which the stage leaves if it
// can run at all. Kills the stage's whole process group at its limit. If the
// stage cannot run, the result says so.
StageResult RunStage(const Stage& stage, const Setting& setting,
                     absl::Duration left, absl::Duration reserved);

// Returns the content of the file; null if there is no such file, and a text
// that says so if the file is not JSON.
report::Value ReadJson(const std::string& file);

// Returns one JUnit file: every case of every stage, named STAGE.SUITE, and a
// case for each stage that has none of its own.
std::string JUnitText(std::span<const StageResult> results);

}  // namespace lockstep::gpu_bundle

#endif  // LOCKSTEP_TOOLS_GPU_BUNDLE_STAGES_H_
