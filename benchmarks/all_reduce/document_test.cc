// Tests of the report's text and JSON, from results whose numbers are easy to
// check.
#include "benchmarks/all_reduce/document.h"

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/data_types.h"
#include "benchmarks/all_reduce/nccl_log.h"
#include "benchmarks/all_reduce/results.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/teams.h"
#include "benchmarks/harness/testing.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

using report::Value;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

report::Document DocumentOf(const AllReduceReport& report,
                            bool finished = true) {
  return AllReduceDocument({&report, 1}, finished);
}

// Returns a row with samples of 0.5, 1, 1 and 2 times `seconds`.
AllReduceRow Measured(const Subject& subject, double seconds) {
  return {subject, {seconds, 2 * seconds, seconds, seconds / 2}, 0, 4};
}

// Returns a report with two sizes, our processes in group memory, Open MPI and
// a missing Gloo. The numbers are easy to check by hand.
AllReduceReport ExampleReport() {
  AllReduceReport report;
  AllReduceSettings& settings = report.settings;
  settings.buffers = {BufferKind::kGroup};
  settings.peers = {TeamKind::kOpenMpi, TeamKind::kGloo};
  settings.sizes = {4 << 10, 64 << 20};
  report.origin = ExampleOrigin("allreduce --buffers=group --peers=mpi,gloo");
  report.notes = {"Something to know."};
  report.missing = {{{TeamKind::kGloo}, "it was not built"}};
  const Subject ours = {{TeamKind::kProcesses}, BufferKind::kGroup};
  const Subject mpi = {{TeamKind::kOpenMpi}};
  const Subject update = {{TeamKind::kUpdate}};
  for (const int64_t bytes : settings.sizes) {
    // Open MPI takes a nanosecond a byte. Updates move 40 GB/s, read and
    // written.
    const double seconds = 1e-9 * static_cast<double>(bytes);
    AllReduceSize measured = {
        .bytes = bytes,
        .rows = {Measured(ours, seconds / 8), Measured(mpi, seconds),
                 Measured(update, 8 * seconds / 40)}};
    if (bytes == 4 << 10) measured.rows[1].wrong = 3;
    report.sizes.push_back(DeriveSize(settings, measured));
  }
  return report;
}

TEST(CountWrongTest, AddsEveryRow) {
  AllReduceReport report = ExampleReport();
  EXPECT_EQ(CountWrong({&report, 1}), 3);
  report.sizes[1].rows[0].wrong = 4;
  EXPECT_EQ(CountWrong({&report, 1}), 7);
}

// The report's text and JSON.

// Expects a double close to `want`. The value is a product of numbers in other
// units, so rounding differs.
void ExpectAbout(const Value& value, double want) {
  const double* const number = std::get_if<double>(&value.variant());
  ASSERT_NE(number, nullptr);
  EXPECT_DOUBLE_EQ(*number, want);
}

// The golden text shows the same numbers, rounded.
TEST(AllReduceDocumentTest, HasTheKeysAndUnitsOfNcclTestsFirst) {
  const report::Document document = DocumentOf(ExampleReport());
  EXPECT_EQ(document.name, "lockstep.allreduce");
  EXPECT_EQ(document.schema_version, 2);
  const Value& data = document.data;
  EXPECT_THAT(data.keys(), ElementsAre("gpu", "shared_gpu", "nccl", "settings",
                                       "notes", "not_available", "results"));
  EXPECT_TRUE(data["gpu"].is_null());
  EXPECT_EQ(data["shared_gpu"], false);
  EXPECT_TRUE(data["nccl"].is_null());
  EXPECT_EQ(data["settings"]["collectives"][0], "all_reduce");
  EXPECT_EQ(data["notes"][0], "Something to know.");
  EXPECT_EQ(data["not_available"]["gloo"], "it was not built");
  ASSERT_EQ(data["results"].size(), 4u);
  EXPECT_THAT(data["results"][0].keys(),
              ElementsAre("size", "world_size", "count", "type", "redop",
                          "root", "time", "alg_bw", "bus_bw", "nwrong",
                          "in_place", "collective", "subject", "backend",
                          "algorithm", "buffers", "p50", "p95", "p99", "mean",
                          "min", "max", "host_us", "nccl", "samples", "rounds",
                          "update_bw", "bound", "bound_fraction", "ratios"));
  const Value& ours = data["results"][2];
  for (const auto& [key, value] :
       {std::pair<const char*, Value>("size", 64 << 20),
        {"count", 16 << 20},
        {"type", "float"},
        {"redop", "sum"},
        {"root", -1},
        {"subject", "processes auto group"},
        {"backend", "processes"},
        {"algorithm", "auto"},
        {"buffers", "group"},
        {"samples", 4},
        {"rounds", 4},
        {"nwrong", 0}}) {
    EXPECT_EQ(ours[key], value) << key;
  }
  constexpr double kMicroseconds = 8388.608;  // 64 MiB at 8 GB/s.
  for (const auto& [key, value] : {std::pair("time", kMicroseconds),
                                   {"p95", 2 * kMicroseconds},
                                   {"p99", 2 * kMicroseconds},
                                   {"mean", 1.125 * kMicroseconds},
                                   {"min", kMicroseconds / 2},
                                   {"max", 2 * kMicroseconds},
                                   {"alg_bw", 8.0},
                                   {"bus_bw", 8.0},
                                   {"update_bw", 40.0},
                                   {"bound", 0.8 * kMicroseconds},
                                   {"bound_fraction", 0.8}}) {
    SCOPED_TRACE(key);
    ExpectAbout(ours[key], value);
  }
  ExpectAbout(ours["ratios"]["mpi"], 8);
  EXPECT_THAT(ours["in_place"].keys(),
              ElementsAre("time", "alg_bw", "bus_bw", "nwrong"));
  const Value& peer = data["results"][1];
  EXPECT_EQ(peer["subject"], "Open MPI");
  EXPECT_TRUE(peer["backend"].is_null());
  EXPECT_EQ(peer["nwrong"], 3);
  EXPECT_EQ(peer["ratios"].size(), 0u);
  AllReduceReport apart = ExampleReport();
  apart.settings.in_place = false;
  const Value result = DocumentOf(apart).data["results"][0];
  EXPECT_FALSE(result["out_of_place"].is_null());
  EXPECT_TRUE(result["in_place"].is_null());
}

constexpr char kGolden[] =
    R"(all-reduce, 2 ranks, float32 sum, in place
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
allreduce --buffers=group --peers=mpi,gloo
Something to know.

     size what                        p50 us   p95 us   p99 us  algbw  busbw wrong bound  /mpi /gloo
    4 KiB processes auto group         0.512    1.024    1.024  8.000  8.000     0   80%  8.00     -
          Open MPI                     4.096    8.192    8.192  1.000  1.000     3   10%     -     -
          bound: update 40.00 GB/s     0.410
   64 MiB processes auto group          8389    16777    16777  8.000  8.000     0   80%  8.00     -
          Open MPI                     67109   134218   134218  1.000  1.000     0   10%     -     -
          bound: update 40.00 GB/s      6711

p50, p95, p99: percentiles of a call's time on its slowest rank; microseconds. algbw: size / p50.
busbw: algbw x 2(P-1)/P; GB/s. wrong: the number of elements of all timed calls, on all ranks, that
are not the exact result. bound: the time to read and write every message once, at the bandwidth of
an update in place of memory that was just written; up to 256 B, with a core for each rank, the p50
of threads that only exchange the messages; as a share of p50. /mpi, /gloo, /oneccl: the p50 of Open
MPI, of Gloo, of oneCCL, over this line's: above 1, this line is faster.
Gloo: not available: it was not built

bar                                     goal                                        measured
2 processes auto group, worst at 4 KiB  at least 1.2 times as fast as the best peer 8.00: met
2 processes auto group, worst at 64 MiB at least 90 percent of the bound            80.0: NOT met
)";

TEST(AllReduceDocumentTest, LooksLikeThisAndGrowsUpToIt) {
  AllReduceReport report = ExampleReport();
  EXPECT_EQ(report::TerminalText(DocumentOf(report)), kGolden);
  // The text grows as sizes are measured.
  while (!report.sizes.empty()) {
    report.sizes.pop_back();
    EXPECT_THAT(kGolden, StartsWith(report::TerminalText(
                             DocumentOf(report, /*finished=*/false))));
  }
}

TEST(AllReduceDocumentTest, FitsItsColumnsWithLargeNumbers) {
  AllReduceReport report = ExampleReport();
  for (AllReduceSize& size : report.sizes) {
    size.bytes = (1 << 30) - 1;
    size.update_bw = 4321e9;
    size.bound_seconds = 1.5;
    for (AllReduceRow& row : size.rows) {
      row.subject = {{TeamKind::kProcesses, Algorithm::kDirect}};
      row.p50 = row.p95 = row.p99 = 59.9;
      row.alg_bw = row.bus_bw = 1234e9;
      row.wrong = int64_t{1} << 40;
      row.bound_fraction = 1.5;
      row.ratios = {{{TeamKind::kOpenMpi}, 9999}, {{TeamKind::kGloo}, 9999}};
    }
  }
  ExpectNarrow(report::TerminalText(DocumentOf(report)));
}

// Returns a report with our ring and window variant, and NCCL's own calls. The
// ranks share a GPU.
AllReduceReport GpuReport() {
  AllReduceReport report;
  AllReduceSettings& settings = report.settings;
  settings.backends = {TeamKind::kNccl};
  settings.algorithms = {Algorithm::kRing, Algorithm::kDirect};
  settings.buffers = {BufferKind::kGroup};
  settings.peers = {TeamKind::kPlainNccl};
  settings.collectives = {Operation::kAllReduce, Operation::kBroadcast};
  settings.sizes = {1 << 20};
  report.origin = ExampleOrigin("allreduce --backend=nccl --peers=nccl");
  report.missing = {{{TeamKind::kPlainNccl, Algorithm::kRing}, "it is gone"},
                    {{TeamKind::kPlainNccl, Algorithm::kRing}, "it is gone"}};
  NcclFacts facts = {.version = "2.28.9+cuda13.0",
                     .network = "Socket",
                     .channels = "24 coll, 16 nvls, 32 p2p",
                     .p2p = "all pairs",
                     .nvls = "available",
                     .transports = {"P2P/CUMEM", "SHM/direct"}};
  report.nccl.push_back({{TeamKind::kNccl, Algorithm::kRing}, facts, "H100"});
  report.nccl.push_back({{TeamKind::kNccl, Algorithm::kDirect}, facts, "H100"});
  report.nccl.back().direct = true;
  facts = {.environment = {{"NCCL_P2P_LEVEL", "NVL"}}};
  report.nccl.push_back({{TeamKind::kPlainNccl}, facts, "H100", true});
  report.nccl.back().calls.push_back(
      {Operation::kAllReduce,
       1 << 20,
       {},
       {"AllReduce_RSxLDMC_AGxSTMC", kUnknown, "16"}});
  for (const Operation operation : settings.collectives) {
    AllReduceSize measured = {.operation = operation, .bytes = 1 << 20};
    for (const Subject& subject : SubjectsOf(settings)) {
      if (subject.team.algorithm == Algorithm::kRing &&
          IsPeer(subject.team.kind)) {
        continue;
      }
      const double scale = IsPeer(subject.team.kind) ? 2 : 1;
      AllReduceRow row = {subject, {scale * 1e-5, scale * 3e-5, scale * 1e-5}};
      row.host_seconds = {2e-6, 1e-6, 9e-6};
      measured.rows.push_back(row);
    }
    AddChoices(report.nccl, measured);
    report.sizes.push_back(DeriveSize(settings, measured));
  }
  return report;
}

constexpr char kGpuGolden[] =
    R"(all-reduce, broadcast, 2 ranks, float32 sum, in place
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
allreduce --backend=nccl --peers=nccl
GPU: H100
shared_gpu: true: ranks share a GPU, so times and bandwidths mean nothing; answers are still
checked.
nccl ring, nccl direct: NCCL 2.28.9+cuda13.0; channels 24 coll, 16 nvls, 32 p2p; network Socket; P2P
all pairs; NVLS available; by P2P/CUMEM, SHM/direct
NCCL: NCCL unknown; channels unknown; network unknown; P2P unknown; NVLS unknown; by unknown;
NCCL_P2P_LEVEL=NVL

all-reduce
     size what                   p50 us host us  algbw  busbw wrong NCCL chose           /nccl /ring
    1 MiB nccl ring group         10.00   2.000  104.9  104.9     0 -                     2.00     -
          nccl direct group       10.00   2.000  104.9  104.9     0 -                     2.00     -
          NCCL                    20.00   2.000  52.43  52.43     0 AllReduce_RSxLDMC 16     -     -

broadcast
     size what                   p50 us host us  algbw  busbw wrong NCCL chose           /nccl /ring
    1 MiB nccl ring group         10.00   2.000  104.9  104.9     0 -                     2.00     -
          nccl direct group       10.00   2.000  104.9  104.9     0 -                     2.00     -
          NCCL                    20.00   2.000  52.43  52.43     0 -                        -     -
)";

TEST(AllReduceDocumentTest, SaysOnGpusWhatNcclDid) {
  AllReduceReport report = GpuReport();
  const report::Document document = DocumentOf(report);
  const std::string text = report::TerminalText(document);
  EXPECT_THAT(text, StartsWith(kGpuGolden));
  EXPECT_THAT(text, HasSubstr("\nNCCL_ALGO=Ring: not available: it is gone\n"));
  ExpectNarrow(text);
  const Value& data = document.data;
  EXPECT_EQ(data["gpu"], "H100");
  EXPECT_EQ(data["shared_gpu"], true);
  const Value& direct = data["nccl"]["nccl direct"];
  EXPECT_EQ(direct["version"], "2.28.9+cuda13.0");
  EXPECT_EQ(direct["transports"][1], "SHM/direct");
  EXPECT_EQ(data["nccl"]["NCCL"]["environment"]["NCCL_P2P_LEVEL"], "NVL");
  EXPECT_EQ(data["not_available"]["nccl_ring"], "it is gone");
  const Value& ours = data["results"][0];
  ExpectAbout(ours["host_us"], 2);
  EXPECT_TRUE(ours["update_bw"].is_null());
  EXPECT_TRUE(ours["bound"].is_null());
  const Value& choice = data["results"][2]["nccl"];
  EXPECT_EQ(choice["algorithm"], "AllReduce_RSxLDMC_AGxSTMC");
  EXPECT_EQ(choice["protocol"], "unknown");
  EXPECT_EQ(choice["channels"], "16");
  const Value& broadcast = data["results"][3];
  EXPECT_EQ(broadcast["collective"], "broadcast");
  EXPECT_EQ(broadcast["redop"], "none");
  EXPECT_EQ(broadcast["root"], 0);
  // The text grows by rows and by tables.
  while (!report.sizes.empty()) {
    report.sizes.pop_back();
    EXPECT_THAT(text, StartsWith(report::TerminalText(
                          DocumentOf(report, /*finished=*/false))));
  }
}

TEST(AllReduceDocumentTest, HasBarsForGpusThatAreNotShared) {
  AllReduceReport report = GpuReport();
  const auto texts = [&] {
    std::vector<std::string> all;
    for (const report::Bar& bar : DocumentOf(report).bars) {
      all.push_back(bar.Text());
    }
    return all;
  };
  const std::string host = "at most 30 us until an all-reduce has returned: ";
  const std::string ring = "2 nccl ring group, " + host + "2.00: met";
  const std::string direct = "2 nccl direct group, " + host + "2.00: met";
  const std::string ring_from =
      "from 128 MiB, 2 nccl ring group, at least 0.95 times as fast as "
      "NCCL_ALGO=Ring: ";
  for (AllReduceRow& row : report.sizes[0].rows) {
    row.ratios = {{{TeamKind::kPlainNccl, Algorithm::kRing}, 0.97}};
  }
  EXPECT_THAT(texts(), ElementsAre(ring, direct));
  // The ring has no ratio bar below 128 MiB.
  for (NcclProbe& probe : report.nccl) probe.shared_gpu = false;
  EXPECT_THAT(texts(),
              ElementsAre(ring, ring_from + "not measured", direct,
                          "from 1 MiB, 2 nccl direct group, at least 1 times "
                          "as fast as NCCL_ALGO=Ring: 0.97: NOT met"));
  report.sizes[0].bytes = 128 << 20;
  EXPECT_THAT(texts(), ElementsAre(ring, ring_from + "0.97: met", direct,
                                   HasSubstr("NOT met")));
  // A direct subject that takes the ring says so, and has no ratio bar.
  for (NcclProbe& probe : report.nccl) probe.direct = false;
  EXPECT_THAT(texts(),
              ElementsAre(ring, ring_from + "0.97: met",
                          "2 nccl direct group (ring), " + host + "2.00: met"));
  EXPECT_EQ(DocumentOf(report).data["results"][1]["subject"],
            "nccl direct group (ring)");
}

// Tables of other types and numbers of ranks follow one another.
TEST(AllReduceDocumentTest, HasATableForEachOfSeveralReports) {
  std::vector<AllReduceReport> reports(2, ExampleReport());
  reports[1].settings.world_size = 4;
  reports[1].settings.type = DataType::kBFloat16;
  reports[1].notes = {"Something to know.", "Something else."};
  reports[1].missing = {{{TeamKind::kOpenMpi}, "it has no bfloat16"}};
  const report::Document document = AllReduceDocument(reports);
  const std::string text = report::TerminalText(document);
  EXPECT_THAT(
      text,
      AllOf(StartsWith("all-reduce, 2 and 4 ranks, float32 and bfloat16 sum, "
                       "in place\n"),
            HasSubstr("\nSomething to know.\nSomething else.\n"),
            HasSubstr("\n2 ranks, float32, in place\n"),
            HasSubstr("\n4 ranks, bfloat16, in place\n"),
            HasSubstr("\nOpen MPI: not available: it has no bfloat16\n"),
            HasSubstr("\nGloo: not available: it was not built\n")));
  EXPECT_EQ(document.data["settings"]["world_sizes"][1], 4);
  EXPECT_EQ(document.data["settings"]["dtypes"][1], "bfloat16");
  const Value& results = document.data["results"];
  ASSERT_EQ(results.size(), 8u);
  EXPECT_EQ(results[0]["world_size"], 2);
  EXPECT_EQ(results[7]["world_size"], 4);
  EXPECT_EQ(results[7]["type"], "bfloat16");
  EXPECT_THAT(document.bars, SizeIs(2));  // Only float32 has bars.
  EXPECT_EQ(CountWrong(reports), 6);
  while (!reports[1].sizes.empty()) {
    reports[1].sizes.pop_back();
    EXPECT_THAT(text, StartsWith(report::TerminalText(
                          AllReduceDocument(reports, /*finished=*/false))));
  }
}

// Only a peer's fastest algorithm counts and is in the table.
TEST(AllReduceDocumentTest, ShowsThePeersFastestAlgorithm) {
  AllReduceReport report = ExampleReport();
  for (AllReduceSize& size : report.sizes) {
    const int32_t algorithm = size.bytes == 4 << 10 ? 4 : 6;
    size.rows.push_back(
        Measured({.team = {TeamKind::kOpenMpi}, .peer_algorithm = algorithm},
                 0.75e-9 * static_cast<double>(size.bytes)));
    for (AllReduceRow& row : size.rows) row.ratios.clear();
    size = DeriveSize(report.settings, size);
  }
  const report::Document document = DocumentOf(report);
  EXPECT_THAT(report::TerminalText(document),
              AllOf(HasSubstr("Open MPI ring                3.072"),
                    HasSubstr("Open MPI Rabenseifner "),
                    Not(HasSubstr("Open MPI   "))));
  EXPECT_EQ(document.bars[0].value, 6);
  const Value& results = document.data["results"];
  ASSERT_EQ(results.size(), 6u);
  EXPECT_TRUE(results[1]["algorithm"].is_null());
  EXPECT_EQ(results[2]["algorithm"], "ring");
  EXPECT_EQ(results[2]["subject"], "Open MPI ring");
}

// If a size has no row of a peer, its ratio to that peer is empty.
TEST(AllReduceDocumentTest, HasARatioForEveryPeer) {
  AllReduceReport report = ExampleReport();
  report.settings.peers.push_back(TeamKind::kOneCcl);
  report.missing.push_back({{TeamKind::kOneCcl}, "it was not built"});
  report.sizes[0].rows[0].ratios.push_back({{TeamKind::kOneCcl}, 1.5});
  const report::Document document = DocumentOf(report);
  EXPECT_EQ(document.data["results"][0]["ratios"]["oneccl"], 1.5);
  EXPECT_EQ(document.data["not_available"]["oneccl"], "it was not built");
  EXPECT_THAT(
      report::TerminalText(document),
      AllOf(HasSubstr(" /mpi /gloo /oneccl\n"), HasSubstr("     -    1.50\n"),
            HasSubstr("\noneCCL: not available: it was not built\n")));
  EXPECT_EQ(document.bars[0].value, 1.5);
}

// A bar takes the better of two peers, and the worst of all sizes up to 256
// MiB. The bar for the bound does not apply to ordinary memory.
TEST(AllReduceDocumentTest, HasBarsForTheWorstSizeNextToTheBestPeer) {
  AllReduceReport report = ExampleReport();
  const std::string what = "2 processes auto group, worst at ";
  const auto first = [&] { return DocumentOf(report).bars[0].Text(); };
  AllReduceRow& ours = report.sizes[1].rows[0];
  ours.ratios.push_back({{TeamKind::kGloo}, 1.19});
  EXPECT_EQ(first(), what +
                         "64 MiB, at least 1.2 times as fast as the best "
                         "peer: 1.19: NOT met");
  report.sizes[1].bytes = 512 << 20;
  EXPECT_EQ(first(), what +
                         "4 KiB, at least 1.2 times as fast as the best "
                         "peer: 8.00: met");
  EXPECT_THAT(DocumentOf(report).bars, SizeIs(1));
  report.sizes[1].bytes = 64 << 20;
  report.settings.buffers = {BufferKind::kOrdinary};
  ours.subject.buffers = BufferKind::kOrdinary;
  EXPECT_THAT(DocumentOf(report).bars, SizeIs(1));
}

// The golden texts check the calls that have bars.
TEST(AllReduceDocumentTest, HasNoBarsForOtherCalls) {
  for (const AllReduceReport& report : {ExampleReport(), GpuReport()}) {
    AllReduceReport type = report, op = report, apart = report;
    type.settings.type = DataType::kFloat64;
    op.settings.op = ReduceOp::kMax;
    apart.settings.in_place = false;
    for (const AllReduceReport& other : {type, op, apart}) {
      EXPECT_THAT(DocumentOf(other).bars, IsEmpty());
    }
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
