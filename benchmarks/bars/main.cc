// The command `bars`: runs the benchmarks that have bars, one after another.
// Then prints one table that shows which bars are met.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/subprocess.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/interrupt.h"
#include "nlohmann/json.hpp"
#include "report/document.h"
#include "report/write.h"

ABSL_FLAG(std::string, benchmarks, "step,data,scaling,allreduce,sampler,syncbn",
          "the benchmarks to run");
ABSL_FLAG(std::string, python, "",
          "the Python that has PyTorch; default: python3, or else "
          "/usr/bin/python3");
ABSL_FLAG(std::string, programs, "",
          "internal: the folder in which the benchmarks' folders are");

namespace lockstep::benchmarks {
namespace {

constexpr char kName[] = "bars";
// A benchmark that takes longer is stopped. The longest takes half an hour.
constexpr absl::Duration kBenchmarkTimeout = absl::Hours(3);

// A benchmark, and the flags with which its bars are stated.
struct Part {
  const char* name;
  const char* program;
  std::vector<std::string> flags;
  bool python = true;       // Whether it has --python.
  const char* prefix = "";  // Put before its bars, if they do not name it.
};

const std::vector<Part>& AllParts() {
  static const auto& parts = *new std::vector<Part>{
      {"step",
       "step/step",
       {"--peers=eager,compile", "--threads=1", "--types=float32", "--layers"}},
      {"data", "data/data", {}},
      {"scaling",
       "scaling/scaling",
       {"--model=lenet", "--mode=strong,weak", "--batch_size=256",
        "--world_sizes=1,2", "--backend=processes,apart", "--peers=torch",
        "--rounds=9", "--steps=30"}},
      {"scaling",
       "scaling/scaling",
       {"--model=resnet18_d2l", "--mode=weak", "--batch_size=32",
        "--world_sizes=1,2", "--backend=processes,apart", "--peers=torch",
        "--rounds=9", "--steps=6", "--warmup_steps=2"}},
      {"allreduce",
       "all_reduce/allreduce",
       {"--world_size=2", "--peers=mpi,gloo,oneccl", "--max_bytes=256M"},
       false},
      {"allreduce",
       "all_reduce/allreduce",
       {"--world_size=4", "--peers=mpi,gloo", "--max_bytes=256M"},
       false},
      {"allreduce",
       "all_reduce/allreduce",
       {"--world_size=8", "--peers=mpi,gloo", "--max_bytes=1M",
        "--iterations=20", "--rounds=7"},
       false},
      {"allreduce",
       "all_reduce/allreduce",
       {"--world_size=8", "--peers=mpi,gloo", "--min_bytes=2M",
        "--max_bytes=256M", "--rounds=3"},
       false},
      {"sampler", "sampler/sampler", {}, true, "sampler: "},
      {"syncbn",
       "syncbn/syncbn",
       {"--shapes=resnet18_d2l", "--network=resnet18_d2l", "--seconds=120"},
       true,
       "SyncBN: "}};
  return parts;
}

// Adds a bar. A benchmark that runs more than once lists the bars of its other
// runs as not measured. If a bar is listed several times, a measured value
// replaces "not measured".
void AddBar(report::Bar bar, std::vector<report::Bar>& bars) {
  const auto same = std::ranges::find(bars, bar.what, &report::Bar::what);
  if (same == bars.end() || (same->value && bar.value)) {
    bars.push_back(std::move(bar));
  } else if (bar.value) {
    *same = std::move(bar);
  }
}

absl::StatusOr<std::vector<Part>> PartsFromFlags() {
  NamedValues<absl::string_view> names;
  for (const Part& part : AllParts()) {
    if (names.empty() || names.back().second != part.name) {
      names.emplace_back(part.name, part.name);
    }
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<absl::string_view> wanted,
      ParseNames("--benchmarks", absl::GetFlag(FLAGS_benchmarks), names));
  std::vector<Part> parts;
  for (const Part& part : AllParts()) {
    if (std::ranges::count(wanted, part.name) > 0) parts.push_back(part);
  }
  return parts;
}

std::vector<std::string> FlagsOf(const Part& part) {
  std::vector<std::string> flags = part.flags;
  if (const std::string python = absl::GetFlag(FLAGS_python);
      part.python && !python.empty()) {
    flags.push_back("--python=" + python);
  }
  return flags;
}

std::string CommandOf(const Part& part) {
  const std::vector<std::string> flags = FlagsOf(part);
  return absl::StrCat("bazel run //benchmarks:", part.name,
                      flags.empty() ? "" : " -- ", absl::StrJoin(flags, " "));
}

absl::StatusOr<std::vector<report::Bar>> ReadBars(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const nlohmann::json json =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::DataLossError(absl::StrCat(path, " is not a JSON object"));
  std::vector<report::Bar> bars;
  for (const nlohmann::json& bar :
       json.value("bars", nlohmann::json::array())) {
    const bool at_most = bar.contains("at_most");
    bars.push_back({.what = bar.value("what", ""),
                    .needed = bar.value(at_most ? "at_most" : "at_least", 0.0),
                    .at_most = at_most,
                    .unit = bar.value("unit", "")});
    if (bar.contains("decimals")) {
      bars.back().decimals = bar.value("decimals", 0);
    }
    if (const auto value = bar.find("value");
        value != bar.end() && value->is_number()) {
      bars.back().value = value->get<double>();
      bars.back().judged = !bar.contains("met") || !bar["met"].is_null();
    }
  }
  return bars;
}

// Runs the benchmark, shows its output line by line, and returns its bars.
// Errors: kInternal if the benchmark fails; CheckInterrupted's.
absl::StatusOr<std::vector<report::Bar>> RunPart(const Part& part,
                                                 const ReportOutput& output) {
  LOCKSTEP_ASSIGN_OR_RETURN(const TemporaryFolder folder,
                            TemporaryFolder::Create("lockstep-bars"));
  const std::string programs = absl::GetFlag(FLAGS_programs);
  const std::filesystem::path benchmarks_folder =
      programs.empty()
          ? std::filesystem::path(OwnProgramPath()).parent_path().parent_path()
          : std::filesystem::path(ResolveUserPath(programs));
  const std::string json = folder.path() + "/report.json";
  std::vector<std::string> command = {
      (benchmarks_folder / part.program).string()};
  for (const std::string& flag : FlagsOf(part)) command.push_back(flag);
  command.push_back("--json=" + json);
  command.push_back("--output_dir=" +
                    (output.folder.empty() ? folder.path() : output.folder));
  Print(absl::StrCat("$ ", CommandOf(part), "\n"));
  LOCKSTEP_ASSIGN_OR_RETURN(Subprocess process, Subprocess::Start(command));
  const absl::Time deadline = absl::Now() + kBenchmarkTimeout;
  bool interrupt_sent =
      false;  // Ctrl-C does not reach the benchmark's process group.
  while (absl::Now() < deadline) {
    const absl::StatusOr<std::string> line =
        process.ReadLine(absl::Milliseconds(200));
    if (line.ok()) {
      Print(*line + "\n");
    } else if (!absl::IsDeadlineExceeded(line.status())) {
      break;
    }
    if (!interrupt_sent && !CheckInterrupted().ok()) {
      interrupt_sent = SendSignal(process.pid(), SIGINT);
    }
  }
  const int status = process.Wait(deadline - absl::Now());
  Print("\n");
  if (interrupt_sent) {
    absl::StatusOr<std::vector<report::Bar>> bars = ReadBars(json);
    return bars.ok() ? bars : CheckInterrupted();
  }
  if (status != 0) {
    return absl::InternalError(
        absl::StrCat(CommandOf(part), ": ", DescribeEnd(status),
                     "; it said: ", report::OneLine(process.err())));
  }
  return ReadBars(json);
}

Usage BarsUsage() {
  return {
      .command = kName,
      .introduction =
          R"(bars [FLAGS]

Runs the benchmarks that have bars (goals of the project), each with the flags
for which its bars are stated. Shows in one table which bars are met. With the
newest PyTorch this takes twenty minutes on two cores; the machine should have
nothing else to do.

  bazel run //benchmarks:bars -- --python=/path/to/venv/bin/python
  bazel run //benchmarks:bars -- --benchmarks=data,allreduce)",
      .sections = {{"what is measured", "benchmarks python=FILE"},
                   {"output; with --output_dir each benchmark's own report "
                    "is written there too",
                    kOutputFlags}},
      .ending =
          R"(Exit status: 0 if every benchmark went well, 2 for a wrong flag, 1 for anything
else.
)",
      .words = OutputWords(kName, /*folder=*/"")};
}

absl::Status Run(std::span<char* const> argv) {
  const InterruptGuard guard;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Part> parts, PartsFromFlags());
  LOCKSTEP_ASSIGN_OR_RETURN(const ReportOutput output,
                            ReportOutput::Create(kName, /*folder=*/""));
  report::Document document = {
      .name = "lockstep.bars",
      .title = "Bars",
      .about = "goals that the project set itself",
      .origin = report::OriginOf("//benchmarks:bars", argv)};
  absl::Status status;
  for (const Part& part : parts) {
    if (!CheckInterrupted().ok()) break;
    absl::StatusOr<std::vector<report::Bar>> bars = RunPart(part, output);
    document.method.push_back(CommandOf(part));
    if (!bars.ok()) {
      // The other benchmarks still run.
      document.remarks.push_back(std::string(bars.status().message()));
      status.Update(bars.status());
      continue;
    }
    for (report::Bar& bar : *bars) {
      bar.what = part.prefix + bar.what;
      AddBar(std::move(bar), document.bars);
    }
  }
  if (const absl::Status interrupted = CheckInterrupted(); !interrupted.ok()) {
    document.remarks.push_back(std::string(interrupted.message()));
    status.Update(interrupted);
  }
  Print(report::TerminalText(document));
  status.Update(output.Write(document));
  return status;
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::benchmarks::BarsUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::benchmarks::Run);
}
