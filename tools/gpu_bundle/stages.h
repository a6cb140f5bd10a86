// Stages: what the bundle runs, one after the other, each with a limit on its
// time; and what came of them.
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

// A line of stages.txt, which says what each part is.
struct Stage {
  std::string name;
  std::vector<std::string> suites;
  absl::Duration least;
  absl::Duration most;
  std::vector<std::string> needs;
  std::vector<std::string> command;

  bool IsIn(absl::string_view suite) const;
};

// Errors: kInvalidArgument, naming the line.
absl::StatusOr<std::vector<Stage>> ParseStages(absl::string_view text);

// What the stages of one run have in common.
struct Setting {
  std::string bundle;  // The folder that has bin/ and peers/.
  std::string out;     // For logs and other files of stages.
  int gpus = 0;
  std::string python;             // "" if none has PyTorch.
  std::string compute_sanitizer;  // "" if there is none.
  bool has_data = false;
  Environment environment;
};

// What the stage needs and this host lacks, as "2 GPUs"; "" if nothing.
std::string Lacks(const Stage& stage, const Setting& setting);

enum class Outcome {
  kPassed,
  kFailed,
  kTimedOut,
  kSkipped,  // It ran, and each of its tests was skipped.
  kNoBudget,
  kLacks,
};

struct StageResult {
  std::string name;
  std::vector<std::string> command;
  Outcome outcome = Outcome::kPassed;
  std::string why = {};  // One line; "" where there is nothing to say.
  double seconds = 0;
  // Of its GoogleTest cases; 0 of 0 for other programs.
  int tests = 0;
  int skipped = 0;
  std::vector<std::string> failed = {};
  std::string junit = {};      // <testsuite> elements.
  report::Value numbers = {};  // The file {json}; null if it wrote none.
};

// "passed", "failed", "timed_out", "skipped", "no_budget", "lacks".
const char* Name(Outcome outcome);

// "passed", "FAILED: exit status 1", "not run: budget".
std::string Text(const StageResult& result);

// Runs the stage for at most its limit and `left`, with all its output in
// OUT/NAME.log; kills its whole process group at the limit. Where it cannot be
// run, says so in the result.
StageResult RunStage(const Stage& stage, const Setting& setting,
                     absl::Duration left);

// null if there is no such file, and a text that says so if it is not JSON.
report::Value ReadJson(const std::string& file);

// One JUnit file: every case of every stage, named STAGE.SUITE, and a case for
// each stage that has none of its own.
std::string JUnitText(std::span<const StageResult> results);

}  // namespace lockstep::gpu_bundle

#endif  // LOCKSTEP_TOOLS_GPU_BUNDLE_STAGES_H_
