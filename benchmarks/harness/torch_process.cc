#include "benchmarks/harness/torch_process.h"

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "base/subprocess.h"
#include "benchmarks/harness/rounds.h"

namespace lockstep::benchmarks {
namespace {

constexpr absl::string_view kAnswerPrefix = "lockstep: ";
constexpr size_t kLongestTalk = 300;

}  // namespace

std::vector<std::string> PythonsToTry(const std::string& python) {
  if (python.empty()) return {"python3", "/usr/bin/python3"};
  return {absl::StrContains(python, "/") ? ResolveUserPath(python) : python};
}

absl::Status NotUnderstood(absl::string_view answer) {
  return absl::InternalError(
      absl::StrCat("its answer has an unknown form: ", answer));
}

absl::StatusOr<TorchProcess> TorchProcess::Start(
    std::span<const std::string> pythons, absl::string_view script,
    absl::Time deadline) {
  std::string why;
  for (const std::string& python : pythons) {
    if (!why.empty() && absl::Now() >= deadline) break;
    absl::StatusOr<TorchProcess> process =
        StartProgram({python, "-c", std::string(script)}, python, deadline);
    if (process.ok()) return process;
    absl::StrAppend(&why, why.empty() ? "" : "; ", python, ": ",
                    process.status().message());
  }
  return absl::UnavailableError(why);
}

absl::StatusOr<TorchProcess> TorchProcess::StartProgram(
    const std::vector<std::string>& argv, const std::string& name,
    absl::Time deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      Subprocess child,
      Subprocess::Start(argv, {.writes_input = true, .merge_error = true}));
  TorchProcess process(std::move(child), name);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer,
                            process.Receive(deadline));
  using Words = std::pair<std::string, std::string>;
  const Words said = absl::StrSplit(answer, absl::MaxSplits(' ', 1));
  if (said.first == "missing") return absl::NotFoundError(said.second);
  if (said.first != "ready") return NotUnderstood(answer);
  Words words = absl::StrSplit(said.second, absl::MaxSplits(' ', 1));
  process.version_ = std::move(words.first);
  process.remark_ = std::move(words.second);
  return process;
}

std::string TorchProcess::name() const {
  return absl::StrCat("PyTorch ", version_, " (", python_, ")");
}

absl::StatusOr<std::string> TorchProcess::Ask(absl::string_view line,
                                              absl::Time deadline) {
  LOCKSTEP_RETURN_IF_ERROR(Tell(line));
  return Answer(deadline);
}

absl::Status TorchProcess::Tell(absl::string_view line) {
  if (process_.WriteLine(line).ok()) return absl::OkStatus();
  return Named(python_, absl::UnavailableError(End()));
}

absl::StatusOr<std::string> TorchProcess::Answer(absl::Time deadline) {
  absl::StatusOr<std::string> answer = Receive(deadline);
  if (answer.ok()) return answer;
  return Named(python_, answer.status());
}

absl::StatusOr<std::string> TorchProcess::Receive(absl::Time deadline) {
  while (true) {
    const bool over = absl::Now() >= deadline;
    absl::StatusOr<std::string> line =
        process_.ReadLine(deadline - absl::Now());
    if (absl::IsOutOfRange(line.status())) {
      return absl::UnavailableError(End());
    }
    if (line.ok() && absl::StartsWith(*line, kAnswerPrefix)) {
      return line->substr(kAnswerPrefix.size());
    }
    if (line.ok()) {
      absl::StripAsciiWhitespace(&*line);
      if (!line->empty()) last_output_line_ = line->substr(0, kLongestTalk);
    }
    // A line that had arrived before the deadline may still be the answer.
    if (!line.ok() || (over && !absl::StrContains(process_.out(), '\n'))) break;
  }
  End();
  return absl::DeadlineExceededError(
      absl::StrCat("it did not answer in time", DescribeLastOutput()));
}

std::string TorchProcess::End() {
  if (ended_) return "it has ended";
  ended_ = true;
  return absl::StrCat(DescribeEnd(process_.End()), DescribeLastOutput());
}

std::string TorchProcess::DescribeLastOutput() const {
  return last_output_line_.empty()
             ? ""
             : absl::StrCat("; it said: ", last_output_line_);
}

}  // namespace lockstep::benchmarks
