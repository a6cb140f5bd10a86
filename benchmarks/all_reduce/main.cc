// The command `allreduce`: measures the speed of all-reduce and of other
// collectives by message size.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/document.h"
#include "benchmarks/all_reduce/nccl_tests_flags.h"
#include "benchmarks/all_reduce/results.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/teams.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/load.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rounds.h"
#include "collectives/collective.h"
#include "report/document.h"
#include "report/write.h"

ABSL_FLAG(std::string, world_size, "2",
          "numbers of ranks, separated by commas; under a launcher, the number "
          "that it started");
ABSL_FLAG(
    std::string, backend, "processes",
    "what ranks are: threads, processes (on several hosts named tcp), mpi (by "
    "mpirun), or nccl (each has a GPU, or ranks share one; not next to other "
    "backends)");
ABSL_FLAG(std::string, collective, "all_reduce",
          "all_reduce, reduce_scatter, all_gather, broadcast, all_to_all");
ABSL_FLAG(std::string, algorithm, "auto",
          "auto, ring, tree (not with nccl), direct");
ABSL_FLAG(
    std::string, buffers, "ordinary,group",
    "the memory of messages: ordinary, or group, which the group allocates "
    "(Communicator::Allocate)");
ABSL_FLAG(
    std::string, peers, "",
    "mpi (Open MPI), gloo (over TCP), oneccl (Intel's); with --backend=nccl: "
    "nccl, which is NCCL's own calls, as it chooses and with NCCL_ALGO=Ring. "
    "On the CPU a line shows the fastest of a peer's algorithms\n"
    "Lists of these flags are measured next to one another; lists of "
    "--world_size, --dtype and --in_place one after the other");
ABSL_FLAG(std::string, dtype, "float32",
          "float64, float32, float16, bfloat16, int32, int64, uint8");
ABSL_FLAG(std::string, op, "sum", "sum, prod, min, max, avg");
ABSL_FLAG(std::string, in_place, "true",
          "true, false: whether input and output are the same buffer; those of "
          "an all-to-all never are, those of a broadcast always");
ABSL_FLAG(std::string, min_bytes, "8",
          "the smallest message, such as 4096, 4K, 64M, 1G");
ABSL_FLAG(std::string, max_bytes, "",
          "the largest message; default: 1G, or less if memory is short");
ABSL_FLAG(int32_t, factor, 2,
          "each size is this many times the size before it");
ABSL_FLAG(double, seconds, 20,
          "time for all sizes of a table; with large sizes it takes longer, "
          "because each size has at least 3 rounds, and each line of the table "
          "has a turn in each round");
ABSL_FLAG(int32_t, rounds, 0,
          "rounds of each size; 0: as many as fit into --seconds");
ABSL_FLAG(
    int32_t, iterations, 0,
    "timed calls of a turn; 0: by size, from 400 down to 1, with nccl from "
    "20 down to 1; at most 4096, with nccl 120");
ABSL_FLAG(
    int32_t, warmup, -1,
    "untimed calls before the timed ones, with nccl on each call's buffers; "
    "-1: 5, or for large messages 1 in the first round only; with nccl 3, "
    "which "
    "is the least");
ABSL_FLAG(
    int32_t, check, 1,
    "accepted because nccl-tests has it; every answer is checked, also with 0");
ABSL_FLAG(double, timeout, 120, "seconds after which a turn times out");
ABSL_FLAG(std::string, worker, "",
          "internal: run as a rank for the driver that listens here");
ABSL_FLAG(std::string, worker_kind, "",
          "internal: the kind of the rank's team");

namespace lockstep::benchmarks {
namespace {

constexpr char kName[] = "allreduce";

constexpr char kNoGpu[] = "no GPU: ";  // Part of a rank's error message.

Usage AllReduceUsage() {
  return {.command = kName,
          .introduction = R"(allreduce [FLAGS]

Times an all-reduce, or other collectives, for a range of message sizes, checks
every answer, and prints a table. With --peers it also times Open MPI, Gloo,
oneCCL or NCCL's own calls, in turns with ours.
)",
          .sections =
              {{"what is measured",
                "world_size backend collective algorithm buffers peers= "
                "dtype op in_place=true min_bytes max_bytes=1G factor"},
               {"how long", "seconds rounds iterations warmup check timeout"},
               {"output (the JSON has the keys of nccl-tests)", kOutputFlags}},
          .ending = absl::StrCat(
              WrapText(
                  absl::StrCat("As in nccl-tests: ", NcclTestsFlagsText(), "."),
                  /*columns=*/80),
              R"(
Under torchrun, mpirun, srun or //collectives:launch, on one host or several,
the ranks of `processes` and `nccl` are the launcher's, and only rank 0 prints.

Exit status: 0 if all went well and every answer was right (on GPUs also if
memory ended before the largest size), 2 for a wrong flag, 1 for anything else.
)"),
          .words = OutputWords(kName, /*folder=*/""),
          .aliases = {{"nproc", "world_size"}}};
}

constexpr int64_t kDefaultMaxBytes = 1 << 30;

// Returns the largest power of two, at most kDefaultMaxBytes, at which a run
// fits in `memory`.
int64_t LargestThatFits(const AllReduceSettings& settings, int64_t memory) {
  int64_t bytes = kDefaultMaxBytes;
  while (bytes > 1 && MemoryNeeded(settings, bytes) > memory) bytes /= 2;
  return bytes;
}

absl::Status SetSizes(AllReduceSettings& settings) {
  const int64_t memory = MemoryForRun();
  LOCKSTEP_ASSIGN_OR_RETURN(
      const int64_t min_bytes,
      ParseBytes("--min_bytes", absl::GetFlag(FLAGS_min_bytes)));
  int64_t max_bytes = std::max(min_bytes, LargestThatFits(settings, memory));
  if (const std::string text = absl::GetFlag(FLAGS_max_bytes); !text.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(max_bytes, ParseBytes("--max_bytes", text));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      settings.sizes,
      MessageSizes(min_bytes, max_bytes, absl::GetFlag(FLAGS_factor),
                   SizeOf(settings.type)));
  const int64_t largest = settings.sizes.back();
  return CheckMemory(
      absl::StrCat("--max_bytes: messages of ", report::Bytes(largest)),
      MemoryNeeded(settings, largest), memory);
}

// Reads the settings that all tables share.
absl::StatusOr<AllReduceSettings> CommonSettings(const LaunchedRun* launched) {
  AllReduceSettings settings;
  LOCKSTEP_ASSIGN_OR_RETURN(settings.backends,
                            ParseBackends(absl::GetFlag(FLAGS_backend)));
  LOCKSTEP_RETURN_IF_ERROR(ResolveTcp(launched, settings.backends));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.collectives,
                            ParseCollectives(absl::GetFlag(FLAGS_collective)));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.algorithms,
                            ParseAlgorithms(absl::GetFlag(FLAGS_algorithm)));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.buffers,
                            ParseBuffers(absl::GetFlag(FLAGS_buffers)));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.peers,
                            ParsePeers(absl::GetFlag(FLAGS_peers)));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.op,
                            ParseOperation(absl::GetFlag(FLAGS_op)));
  settings.seconds = absl::GetFlag(FLAGS_seconds);
  settings.rounds = absl::GetFlag(FLAGS_rounds);
  settings.iterations = absl::GetFlag(FLAGS_iterations);
  settings.warmup = absl::GetFlag(FLAGS_warmup);
  return settings;
}

// Reads the settings of each table, in order.
absl::StatusOr<std::vector<AllReduceSettings>> SettingsFromFlags(
    const LaunchedRun* launched) {
  LOCKSTEP_ASSIGN_OR_RETURN(AllReduceSettings settings,
                            CommonSettings(launched));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<int> world_sizes,
                            ParseWorldSizes(absl::GetFlag(FLAGS_world_size)));
  if (launched != nullptr) world_sizes = {launched->world_size()};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<DataType> types,
                            ParseTypes(absl::GetFlag(FLAGS_dtype)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<bool> places,
                            ParsePlacements(absl::GetFlag(FLAGS_in_place)));
  std::vector<AllReduceSettings> all;
  for (const int world_size : world_sizes) {
    for (const DataType type : types) {
      for (const bool in_place : places) {
        settings.world_size = world_size;
        settings.type = type;
        settings.in_place = in_place;
        LOCKSTEP_RETURN_IF_ERROR(Validate(settings));
        LOCKSTEP_RETURN_IF_ERROR(SetSizes(settings));
        all.push_back(settings);
      }
    }
  }
  if (all.size() > 1 && OnGpu(settings)) {
    return absl::InvalidArgumentError(
        "--backend=nccl takes one --world_size, --dtype and --in_place");
  }
  return all;
}

// Returns notes on the run: checks, shared cores, and Open MPI's flags for
// them.
std::vector<std::string> NotesOn(const AllReduceSettings& settings, int cores) {
  std::vector<std::string> notes;
  if (absl::GetFlag(FLAGS_check) == 0) {
    notes.push_back("Every answer is checked, also with -c 0.");
  }
  if (settings.world_size <= cores || OnGpu(settings)) return notes;
  notes.push_back(absl::StrCat(settings.world_size, " ranks on ",
                               report::Counted(cores, "core"), " take turns."));
  for (const TeamKind peer : settings.peers) {
    if (peer != TeamKind::kOpenMpi) continue;
    notes.push_back(
        "Open MPI runs with mpirun --oversubscribe --bind-to "
        "core:overload-allowed and OMPI_MCA_mpi_yield_when_idle=1.");
  }
  return notes;
}

// Starts all teams. The folder in which ranks meet is removed afterwards.
absl::StatusOr<std::unique_ptr<AllReduceTeams>> StartTeams(
    AllReduceReport& report) {
  LOCKSTEP_ASSIGN_OR_RETURN(const TemporaryFolder store,
                            TemporaryFolder::Create("lockstep-allreduce"));
  const TeamSetting setting = {
      .folder = std::filesystem::path(OwnProgramPath()).parent_path().string(),
      .store = store.path(),
      .cores = report.origin.machine.cores,
      .timeout = absl::Seconds(absl::GetFlag(FLAGS_timeout))};
  absl::StatusOr<std::unique_ptr<AllReduceTeams>> teams =
      AllReduceTeams::Start(report.settings, setting, report.missing);
  if (absl::StrContains(teams.status().message(), kNoGpu)) {
    return absl::InvalidArgumentError(
        "--backend=nccl needs an NVIDIA GPU and its driver; none was found");
  }
  return teams;
}

// Measures all sizes of all collectives. After an error, the report keeps the
// sizes measured before. Calls `show` before each size.
absl::Status MeasureSizes(AllReduceTeams& teams, AllReduceReport& report,
                          absl::FunctionRef<void()> show) {
  const AllReduceSettings& settings = report.settings;
  const auto take_turn = [&](const Team& team, const TurnRequest& request) {
    return teams.TakeTurn(team, request);
  };
  for (const Operation operation : settings.collectives) {
    // A peer that does not support one collective may support the next.
    std::vector<Subject> subjects = SubjectsOf(settings);
    std::erase_if(subjects, [&](const Subject& subject) {
      return !teams.Has(subject.team);
    });
    for (const int64_t bytes : SizesOf(settings, operation)) {
      if (subjects.empty()) break;
      show();
      absl::StatusOr<AllReduceSize> measured =
          MeasureSize(settings, operation, bytes, take_turn, SteadySeconds,
                      subjects, report.missing);
      if (absl::IsResourceExhausted(measured.status()) && OnGpu(settings) &&
          !report.sizes.empty()) {
        report.remarks.push_back(absl::StrCat(
            CollectiveName(operation), " ended at ", report::Bytes(bytes), ": ",
            measured.status().message()));
        break;
      }
      LOCKSTEP_RETURN_IF_ERROR(measured.status());
      AddChoices(teams.probes(), *measured);
      report.sizes.push_back(DeriveSize(settings, *std::move(measured)));
    }
  }
  return absl::OkStatus();
}

// Measures one table.
absl::Status Measure(AllReduceReport& report, absl::FunctionRef<void()> show) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<AllReduceTeams> teams,
                            StartTeams(report));
  report.nccl = teams->probes();
  absl::Status status = MeasureSizes(*teams, report, show);
  if (!status.ok()) {
    report.remarks.push_back(absl::StrCat("ended: ", status.message()));
  }
  status.Update(teams->Stop());
  return status;
}

absl::Status RunDriver(std::span<char* const> argv) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<LaunchedRun> launched,
                            LaunchedRun::Join());
  if (launched != nullptr && !launched->is_driver()) return launched->Serve();
  const InterruptGuard guard;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<AllReduceSettings> settings,
                            SettingsFromFlags(launched.get()));
  LOCKSTEP_ASSIGN_OR_RETURN(ReportOutput output,
                            ReportOutput::Create(kName, /*folder=*/""));
  if (launched != nullptr) output.load = LoadMeter(launched->processes());
  report::Origin origin = report::OriginOf("//benchmarks:allreduce", argv);
  DescribeHosts(launched.get(), origin);
  std::vector<AllReduceReport> reports;
  for (const AllReduceSettings& each : settings) {
    AllReduceReport& report = reports.emplace_back();
    report.settings = each;
    report.settings.has_cores = launched == nullptr && each.world_size > 1 &&
                                each.world_size <= origin.machine.cores;
    report.origin = origin;
    report.notes = NotesOn(
        each, launched == nullptr ? origin.machine.cores : launched->cores());
  }
  report::GrowingReport shown;
  absl::Status status;
  for (AllReduceReport& report : reports) {
    status = Measure(report, [&] {
      shown.Show(AllReduceDocument(reports, /*finished=*/false));
    });
    if (status.ok()) continue;
    const bool started = !report.remarks.empty();
    if (!started && &report == &reports[0]) return status;
    if (!started) {
      report.remarks.push_back(absl::StrCat("ended: ", status.message()));
    }
    break;
  }
  report::Document document = AllReduceDocument(reports);
  AddLoad(output.load.OthersShare(), document);
  shown.Show(document);
  status.Update(output.Write(document));
  if (const int64_t wrong = CountWrong(reports); wrong > 0) {
    return absl::DataLossError(
        absl::StrCat(wrong, " elements are not the exact result"));
  }
  return status;
}

absl::Status RunWorker(const std::string& listener) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Algorithm> algorithms,
                            ParseAlgorithms(absl::GetFlag(FLAGS_algorithm)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int> world_sizes,
                            ParseWorldSizes(absl::GetFlag(FLAGS_world_size)));
  const std::string kind = absl::GetFlag(FLAGS_worker_kind);
  for (const TeamKind each :
       {TeamKind::kProcesses, TeamKind::kTcp, TeamKind::kThreads,
        TeamKind::kUpdate, TeamKind::kExchange}) {
    if (kind != Name(each)) continue;
    return RunAllReduceRank(listener, {each, algorithms[0]}, world_sizes[0]);
  }
  return absl::InvalidArgumentError("--worker_kind: this flag is internal");
}

absl::Status Run(std::span<char* const> argv) {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckSeconds("--timeout", absl::GetFlag(FLAGS_timeout)));
  const std::string worker = absl::GetFlag(FLAGS_worker);
  return worker.empty() ? RunDriver(argv) : RunWorker(worker);
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  const std::span<char* const> typed(argv, static_cast<size_t>(argc));
  absl::StatusOr<std::vector<std::string>> arguments =
      lockstep::benchmarks::TranslateNcclTestsFlags(typed);
  if (!arguments.ok()) {
    lockstep::Fail(lockstep::benchmarks::kName, arguments.status());
    return lockstep::kUsageError;
  }
  std::vector<char*> pointers;
  for (std::string& argument : *arguments) pointers.push_back(argument.data());
  return lockstep::CommandMain(lockstep::benchmarks::AllReduceUsage(), pointers,
                               [typed](std::span<char* const>) {
                                 return lockstep::benchmarks::Run(typed);
                               });
}
