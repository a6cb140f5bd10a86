// The command `sampler`: measures how fast epochs are drawn, by the size of the
// data set, and compares with PyTorch.
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/load.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/sampler/document.h"
#include "benchmarks/sampler/results.h"
#include "benchmarks/sampler/settings.h"
#include "benchmarks/sampler/torch_peer_py.h"
#include "benchmarks/sampler/turn.h"
#include "report/document.h"
#include "report/write.h"
#include "sampler/sampler.h"

ABSL_FLAG(std::string, sizes, "60000,1281167,100000000",
          "numbers of samples in the data set");
ABSL_FLAG(std::string, peers, "torch",
          "torch, or empty, which does not need PyTorch");
ABSL_FLAG(std::string, python, "",
          "the Python that has PyTorch; default: python3, or else "
          "/usr/bin/python3");
ABSL_FLAG(
    int32_t, rounds, 0,
    "number of rounds, in each of which every sampler draws once; 0: from "
    "2 to 15, as many as fit into --seconds");
ABSL_FLAG(double, seconds, 35,
          "time for the whole command; PyTorch takes some 10 s for one draw of "
          "100,000,000");
ABSL_FLAG(double, timeout, 120, "seconds that PyTorch has to answer");

namespace lockstep::benchmarks {
namespace {

constexpr char kName[] = "sampler";

Usage SamplerUsage() {
  return {
      .command = kName,
      .introduction = R"(sampler [FLAGS]

Times how long one rank of 8 takes to draw the indices of an epoch, with each
sampler, on one thread. Checks the indices and prints a table. If a Python has
PyTorch, its DistributedSampler takes turns with ours. Then times the order in
O(1) memory, at 10^12 samples. Shows which bars, the project's goals, are met.
)",
      .sections = {{"what is measured", "sizes peers python="},
                   {"how long", "rounds seconds timeout"},
                   {"output", kOutputFlags}},
      .ending =
          R"(Exit status: 0 if all went well and every index was right, 2 for a wrong flag,
1 for anything else.
)",
      .words = OutputWords(kName, /*folder=*/"")};
}

constexpr int kKeyedRounds = 15;
constexpr double kKeyedRoundSeconds = 0.1;

absl::StatusOr<SamplerSettings> SettingsFromFlags() {
  SamplerSettings settings;
  LOCKSTEP_ASSIGN_OR_RETURN(settings.sizes,
                            ParseSizes(absl::GetFlag(FLAGS_sizes)));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.torch,
                            ParseSamplerPeers(absl::GetFlag(FLAGS_peers)));
  settings.pythons = PythonsToTry(absl::GetFlag(FLAGS_python));
  settings.rounds = absl::GetFlag(FLAGS_rounds);
  settings.seconds = absl::GetFlag(FLAGS_seconds);
  settings.timeout = absl::GetFlag(FLAGS_timeout);
  LOCKSTEP_RETURN_IF_ERROR(Validate(settings));
  const int64_t largest = settings.sizes.back();
  LOCKSTEP_RETURN_IF_ERROR(
      CheckMemory(absl::StrCat("--sizes: ", largest, " samples"),
                  DrawMemory(largest), MemoryForRun()));
  return settings;
}

// Starts PyTorch. Returns nothing if PyTorch was not requested, or does not
// start; report.missing then says why.
std::optional<TorchProcess> StartPeer(SamplerReport& report) {
  if (!report.settings.torch) return std::nullopt;
  absl::StatusOr<TorchProcess> peer =
      TorchProcess::Start(report.settings.pythons, SamplerPeerTorch(),
                          absl::Now() + absl::Seconds(report.settings.timeout));
  if (!peer.ok()) {
    report.missing = std::string(peer.status().message());
    return std::nullopt;
  }
  report.peer = peer->name();
  return *std::move(peer);
}

absl::StatusOr<DrawResult> Draw(DrawSubject subject, int64_t size) {
  if (subject != DrawSubject::kTable) return DrawEpoch(subject, size);
  LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, TimeRandomUpdates(size));
  return DrawResult{.seconds = seconds};
}

absl::Status MeasureSizes(std::optional<TorchProcess>& peer,
                          SamplerReport& report, report::GrowingReport& shown) {
  std::vector<DrawSubject> subjects = {DrawSubject::kTorch, DrawSubject::kExact,
                                       DrawSubject::kPaddle};
  if (peer) subjects.push_back(DrawSubject::kPyTorch);
  subjects.push_back(DrawSubject::kTable);
  const double start = SteadySeconds();
  const auto elapsed = [start] { return SteadySeconds() - start; };
  const auto draw = [&](DrawSubject subject, int64_t size) {
    return subject == DrawSubject::kPyTorch
               ? DrawWithPeer(*peer, size, report.settings)
               : Draw(subject, size);
  };
  for (const int64_t size : report.settings.sizes) {
    LOCKSTEP_ASSIGN_OR_RETURN(const DrawRows measured,
                              MeasureEpoch(report.settings, size, draw, elapsed,
                                           subjects, report.missing));
    report.sizes.push_back(DeriveRows(measured));
    shown.Show(SamplerDocument(report, /*finished=*/false));
  }
  return absl::OkStatus();
}

absl::Status MeasureKeyed(int64_t memory, SamplerReport& report) {
  LOCKSTEP_ASSIGN_OR_RETURN(const EpochIndices indices, DrawKeyed(kKeyedSize));
  LOCKSTEP_RETURN_IF_ERROR(CheckKeyed(indices, kKeyedSize));
  const int rounds =
      report.settings.rounds > 0 ? report.settings.rounds : kKeyedRounds;
  std::vector<double> speeds, seconds_per_index;
  for (int round = 0; round < rounds; ++round) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double speed,
                              TimeKeyedBlocks(indices, kKeyedRoundSeconds));
    speeds.push_back(speed);
    seconds_per_index.push_back(TimeKeyedIndex(indices));
  }
  report.keyed = DeriveKeyed(speeds, seconds_per_index, memory);
  return absl::OkStatus();
}

// Makes malloc keep freed memory, up to its largest limit for one allocation.
// Otherwise, one subject's draw returns memory to the system, and the next
// subject's draw must request it again. A process that uses a single sampler
// would not do that.
void KeepMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

absl::Status MeasureAll(std::optional<TorchProcess>& peer, int64_t keyed_memory,
                        SamplerReport& report, report::GrowingReport& shown) {
  LOCKSTEP_RETURN_IF_ERROR(MeasureSizes(peer, report, shown));
  peer.reset();  // Ends PyTorch's process, so that it takes no time or memory.
  return MeasureKeyed(keyed_memory, report);
}

absl::Status Run(std::span<char* const> argv) {
  const InterruptGuard guard;
  LOCKSTEP_ASSIGN_OR_RETURN(const SamplerSettings settings,
                            SettingsFromFlags());
  LOCKSTEP_ASSIGN_OR_RETURN(const ReportOutput output,
                            ReportOutput::Create(kName, /*folder=*/""));
  SamplerReport report = {
      .settings = settings,
      .origin = report::OriginOf("//benchmarks:sampler", argv)};
  // Memory is measured first, while the process has no freed memory to reuse.
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t keyed_memory,
                            KeyedMemory(kKeyedSize));
  KeepMemory();
  std::optional<TorchProcess> peer = StartPeer(report);
  report::GrowingReport shown;
  shown.Show(SamplerDocument(report, /*finished=*/false));
  // The report keeps what was measured before an error.
  absl::Status status = MeasureAll(peer, keyed_memory, report, shown);
  report::Document document = SamplerDocument(report);
  AddLoad(output.load.OthersShare(), document);
  if (!status.ok()) {
    document.remarks.push_back(absl::StrCat("the rest: ", status.message()));
  }
  shown.Show(document);
  status.Update(output.Write(document));
  return status;
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::benchmarks::SamplerUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::benchmarks::Run);
}
