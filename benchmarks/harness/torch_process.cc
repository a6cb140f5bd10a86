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

namespace lockstep::benchmarks {
namespace {

constexpr size_t kLongestTalk = 300;

}  // namespace

absl::StatusOr<LineWorker> LineWorker::Start(
    const std::vector<std::string>& argv) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      Subprocess process,
      Subprocess::Start(argv, {.writes_input = true, .merge_error = true}));
  return LineWorker(std::move(process));
}

absl::Status LineWorker::Send(absl::string_view line) {
  if (!process_.WriteLine(line).ok()) return absl::UnavailableError(End());
  return absl::OkStatus();
}

absl::StatusOr<std::string> LineWorker::Receive(absl::Time deadline) {
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
      if (!line->empty()) talk_ = line->substr(0, kLongestTalk);
    }
    // What had come by then may still be the answer.
    if (!line.ok() || (over && !absl::StrContains(process_.out(), '\n'))) break;
  }
  End();
  return absl::DeadlineExceededError(
      absl::StrCat("it did not answer in time", LastWords()));
}

std::string LineWorker::End() {
  if (ended_) return "it has ended";
  ended_ = true;
  return absl::StrCat(DescribeEnd(process_.End()), LastWords());
}

std::string LineWorker::LastWords() const {
  return talk_.empty() ? "" : absl::StrCat("; it said: ", talk_);
}

std::vector<std::string> PythonsToTry(const std::string& python) {
  if (python.empty()) return {"python3", "/usr/bin/python3"};
  return {absl::StrContains(python, "/") ? UserPath(python) : python};
}

absl::Status NotUnderstood(absl::string_view answer) {
  return absl::InternalError(
      absl::StrCat("its answer is not understood: ", answer));
}

absl::StatusOr<TorchProcess> TorchProcess::Start(
    std::span<const std::string> pythons, absl::string_view script,
    absl::Time deadline) {
  std::string why;
  for (const std::string& python : pythons) {
    if (!why.empty() && absl::Now() >= deadline) break;
    absl::StatusOr<TorchProcess> process = StartWith(python, script, deadline);
    if (process.ok()) return process;
    absl::StrAppend(&why, why.empty() ? "" : "; ", python, ": ",
                    process.status().message());
  }
  return absl::UnavailableError(why);
}

absl::StatusOr<TorchProcess> TorchProcess::StartWith(const std::string& python,
                                                     absl::string_view script,
                                                     absl::Time deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      LineWorker worker,
      LineWorker::Start({python, "-c", std::string(script)}));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer, worker.Receive(deadline));
  std::pair<std::string, std::string> words =
      absl::StrSplit(answer, absl::MaxSplits(' ', 1));
  if (words.first == "missing") return absl::NotFoundError(words.second);
  if (words.first != "ready") return NotUnderstood(answer);
  return TorchProcess(std::move(worker), python, std::move(words.second));
}

absl::StatusOr<std::string> TorchProcess::Ask(absl::string_view line,
                                              absl::Time deadline) {
  const absl::Status sent = worker_.Send(line);
  absl::StatusOr<std::string> answer =
      sent.ok() ? worker_.Receive(deadline) : sent;
  if (answer.ok()) return answer;
  return absl::Status(answer.status().code(),
                      absl::StrCat(python_, ": ", answer.status().message()));
}

}  // namespace lockstep::benchmarks
