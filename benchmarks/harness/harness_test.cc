// Tests the tools that all benchmarks measure with: statistics, numbers by
// position, memory, copies, bytes and rounds; where reports are written, and
// bars that are not met.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/load.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"
#include "report/write.h"

ABSL_DECLARE_FLAG(std::string, json);
ABSL_DECLARE_FLAG(std::string, output_dir);
ABSL_DECLARE_FLAG(bool, require_bars);

namespace lockstep::benchmarks {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(PercentileTest, IsTheNearestRank) {
  const std::vector<double> samples = {15, 20, 35, 40, 50};
  // The position is ceil(p * 5 / 100), at least 1.
  const std::pair<double, double> cases[] = {{0, 15},  {5, 15},  {20, 15},
                                             {30, 20}, {40, 20}, {50, 35},
                                             {99, 50}, {100, 50}};
  for (const auto& [p, want] : cases) {
    EXPECT_EQ(Percentile(samples, p), want) << p;
    EXPECT_EQ(Percentile(std::vector<double>{7}, p), 7) << p;
  }
}

TEST(PercentileTest, OfOneToHundredInAnyOrderIsItsRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  for (int p = 1; p <= 100; ++p) EXPECT_EQ(Percentile(samples, p), p) << p;
}

// The median of an even number of samples is the mean of the two in the middle.
// The index is that of the smaller one.
TEST(MedianTest, IsTheMiddle) {
  struct Case {
    std::vector<double> samples;
    double median;
    int64_t index;
  };
  for (const Case& c :
       {Case{{3}, 3, 0}, Case{{4, 1}, 2.5, 1}, Case{{9, 1, 5}, 5, 2},
        Case{{8, 2, 100, 4}, 6, 3}, Case{{5, 5, 5}, 5, 1}}) {
    EXPECT_EQ(Median(c.samples), c.median);
    EXPECT_EQ(MedianIndex(c.samples), c.index);
  }
}

TEST(MeanTest, IsTheSumOverTheCount) {
  EXPECT_EQ(Mean(std::vector<double>{2}), 2);
  EXPECT_EQ(Mean(std::vector<double>{1, 2, 6}), 3);
}

// SplitMix64's first output for the seed 0, as its authors give it.
TEST(MixBitsTest, IsSplitMix64s) {
  EXPECT_EQ(MixBits(0x9e3779b97f4a7c15), 0xe220a8397b1dcdafu);
}

// The mean of 10,000 uniform numbers deviates by 0.006, the mean of their
// squares by 0.003. The numbers are fixed, so this fails always or never.
TEST(UniformTest, IsSpreadOverItsRangeAndDiffersByStreamAndPosition) {
  for (const uint64_t key :
       {UniformKey(0, 0), UniformKey(0, 1), UniformKey(1, 0)}) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < 10000; ++i) {
      const double x = Uniform(key, i);
      ASSERT_GE(x, -1);
      ASSERT_LT(x, 1);
      sum += x;
      squares += x * x;
    }
    EXPECT_NEAR(sum / 10000, 0, 0.03);
    EXPECT_NEAR(squares / 10000, 1.0 / 3, 0.015);
  }
  EXPECT_NE(Uniform(UniformKey(0, 0), 0), Uniform(UniformKey(0, 0), 1));
  EXPECT_NE(Uniform(UniformKey(0, 0), 0), Uniform(UniformKey(0, 1), 0));
  EXPECT_NE(Uniform(UniformKey(0, 0), 0), Uniform(UniformKey(1, 0), 0));
}

// Memory in the text of /proc, and on this machine.

TEST(MemAvailableTest, IsWhatTheLineSaysIfThereIsOne) {
  EXPECT_EQ(MemAvailable("MemTotal:       100 kB\nMemAvailable:    12 kB\n"),
            12 << 10);
  for (const char* text : {"", "MemTotal: 100 kB\n", "MemAvailable: x kB\n",
                           "MemAvailable: 12\n"}) {
    EXPECT_EQ(MemAvailable(text), std::nullopt) << text;
  }
}

TEST(AvailableMemoryTest, IsThereAndMoreThanARunMayTake) {
  EXPECT_GT(MemoryForRun(), 0);
  EXPECT_GT(AvailableMemory(), MemoryForRun());
}

TEST(CheckMemoryTest, RefusesWhatHasNoRoom) {
  EXPECT_THAT(CheckMemory("--size: 9 of them", 3 << 20, 3 << 20), IsOk());
  EXPECT_THAT(CheckMemory("--size: 9 of them", (3 << 20) + 1, 3 << 20),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--size: 9 of them need 3 MiB, and there is room for 3 "
                       "MiB"));
}

// Memory growth is seen, and a process that fails gives no number.

constexpr int64_t kMiB = 1 << 20;

// The bytes that the kernel or a sanitizer may add.
constexpr int64_t kSlack = 8 * kMiB;

// Takes memory from the system and returns it to the system. The malloc of the
// system or of a sanitizer might keep it.
absl::Status Take(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("no memory");
  std::memset(memory, 1, size);
  munmap(memory, size);
  return absl::OkStatus();
}

absl::Status Nothing() { return absl::OkStatus(); }

TEST(ResidentGrowthTest, SeesThePeak) {
  const absl::StatusOr<int64_t> nothing = ResidentGrowth(Nothing, Nothing);
  ASSERT_THAT(nothing, IsOk());
  EXPECT_GE(*nothing, 0);
  EXPECT_LT(*nothing, kSlack);
  const absl::StatusOr<int64_t> much =
      ResidentGrowth(Nothing, [] { return Take(64 * kMiB); });
  ASSERT_THAT(much, IsOk());
  EXPECT_GT(*much, 64 * kMiB - kSlack);
  EXPECT_LT(*much, 64 * kMiB + kSlack);
}

// An earlier peak of this process does not hide that of the copy.
TEST(ResidentGrowthTest, BeginsAtWhatIsResidentNow) {
  ASSERT_THAT(Take(128 * kMiB), IsOk());
  const absl::StatusOr<int64_t> growth =
      ResidentGrowth(Nothing, [] { return Take(32 * kMiB); });
  ASSERT_THAT(growth, IsOk());
  EXPECT_GT(*growth, 32 * kMiB - kSlack);
}

// Only memory beyond that of the warm-up counts.
TEST(ResidentGrowthTest, LeavesOutTheWarmUp) {
  const auto take = [] { return Take(64 * kMiB); };
  const absl::StatusOr<int64_t> growth = ResidentGrowth(take, take);
  ASSERT_THAT(growth, IsOk());
  EXPECT_LT(*growth, kSlack);
}

TEST(ResidentGrowthTest, ReportsWhatTheWarmUpOrTheWorkReports) {
  const auto fails = [] { return absl::DataLossError("it went wrong"); };
  const auto wrong = StatusIs(absl::StatusCode::kInternal, "it went wrong");
  EXPECT_THAT(ResidentGrowth(fails, Nothing), wrong);
  EXPECT_THAT(ResidentGrowth(Nothing, fails), wrong);
}

TEST(ResidentGrowthTest, ReportsAProcessThatDoesNotFinish) {
  EXPECT_THAT(ResidentGrowth(Nothing, []() -> absl::Status { _exit(3); }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("finish")));
}

// Copies happen and are timed. Their speed is not tested.

TEST(TimeCopiesTest, TimesEveryCopyAndMissesNoByte) {
  for (const CopyStores stores : {CopyStores::kMemcpy, CopyStores::kStreamed}) {
    for (const int threads : {1, 2, 3}) {
      for (const int64_t bytes : {1, 8, 1000, 9 << 20}) {
        const absl::StatusOr<TimedCalls> result =
            TimeCopies(threads, bytes, /*warmup=*/0, /*iterations=*/3, stores);
        ASSERT_THAT(result, IsOk());
        EXPECT_THAT(result->seconds, SizeIs(3));
        EXPECT_THAT(result->seconds, Each(Gt(0)));
        EXPECT_EQ(result->wrong, 0);
      }
    }
  }
}

TEST(TimeCopiesTest, CountsWhatWasNotCopiedAndReportsMemoryThatIsNotThere) {
  const absl::StatusOr<TimedCalls> result =
      TimeCopies(2, 1000, /*warmup=*/0, /*iterations=*/0);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->wrong, 500);
  EXPECT_THAT(TimeCopies(1, int64_t{1} << 62, 0, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("no memory for")));
}

TEST(UpdaterTest, UpdatesEveryValueOfEveryCallOnce) {
  for (const int threads : {1, 2, 3}) {
    Updater updater(threads);
    for (const int64_t bytes : {1000, 9 << 20, 12}) {
      const absl::StatusOr<TimedCalls> result =
          updater.Time(bytes, /*calls=*/3);
      ASSERT_THAT(result, IsOk());
      EXPECT_THAT(result->seconds, SizeIs(3));
      EXPECT_THAT(result->seconds, Each(Gt(0)));
      EXPECT_EQ(result->wrong, 0);
    }
  }
  EXPECT_THAT(Updater(1).Time(int64_t{1} << 62, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("no memory for")));
}

// Values as bytes.

struct Part {
  int32_t number = 0;
  std::vector<double> list;

  static auto Members(auto& self) { return std::tie(self.number, self.list); }
  friend bool operator==(const Part&, const Part&) = default;
};

struct Whole {
  bool flag = false;
  std::string text;
  std::vector<Part> parts;

  static auto Members(auto& self) {
    return std::tie(self.flag, self.text, self.parts);
  }
  friend bool operator==(const Whole&, const Whole&) = default;
};

TEST(CodecTest, DecodesWhatItEncodes) {
  const Whole whole = {true, std::string("a\0b", 3), {{7, {0.5, 0.25}}, {}}};
  EXPECT_THAT(Decode<Whole>(Encode(whole)), IsOkAndHolds(whole));
  EXPECT_THAT(Decode<double>(Encode(0.1)), IsOkAndHolds(0.1));
}

TEST(CodecTest, RefusesWhatIsCutShortOrTooLong) {
  const std::string whole = Encode(Whole{true, "text", {{7, {0.5, 0.25}}, {}}});
  const auto refused = StatusIs(absl::StatusCode::kDataLoss,
                                "a message of another size than expected");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(Decode<Whole>(whole.substr(0, size)), refused) << size;
  }
  EXPECT_THAT(Decode<Whole>(whole + "x"), refused);
  // A count far beyond the bytes must not cause an allocation.
  EXPECT_THAT(Decode<std::vector<Part>>(std::string(8, '\x7f')), refused);
  EXPECT_THAT(Decode<std::string>(std::string(8, '\xff')), refused);
}

// Rounds of turns, by a fake clock.

// Returns the turns of `rounds` rounds of `count` subjects, one after the
// other.
std::vector<size_t> Turns(int rounds, size_t count) {
  std::vector<size_t> turns;
  EXPECT_THAT(MeasureRounds(
                  {.rounds = rounds}, count, [] { return 0.0; },
                  [&](int, size_t subject) {
                    turns.push_back(subject);
                    return absl::OkStatus();
                  }),
              IsOkAndHolds(rounds));
  return turns;
}

TEST(MeasureRoundsTest, GoesBackEverySecondRound) {
  EXPECT_THAT(Turns(4, 3), testing::ElementsAre(0, 1, 2,  //
                                                1, 0, 2,  //
                                                1, 2, 0,  //
                                                2, 1, 0));
  EXPECT_THAT(Turns(3, 1), testing::ElementsAre(0, 0, 0));
}

// 14 rounds are two rounds of each beginning. Every subject then has every
// position, and each other subject comes just before it at most 7 times.
TEST(MeasureRoundsTest, PutsNoSubjectAlwaysBehindTheSame) {
  const std::vector<size_t> turns = Turns(14, 7);
  ASSERT_THAT(turns, SizeIs(14 * 7));
  for (size_t subject = 0; subject < 7; ++subject) {
    std::map<size_t, int> before;
    std::set<size_t> places;
    for (size_t i = 0; i < turns.size(); ++i) {
      if (turns[i] != subject) continue;
      places.insert(i % 7);
      if (i > 0) ++before[turns[i - 1]];
    }
    EXPECT_THAT(places, SizeIs(7)) << subject;
    EXPECT_THAT(before, SizeIs(testing::Ge(2u))) << subject;
    for (const auto& [other, times] : before) {
      EXPECT_NE(other, subject);
      EXPECT_LE(times, 7) << other << ", " << subject;
    }
  }
}

// Returns the number of rounds of `seconds` each that the limits allow.
absl::StatusOr<int> RoundsOf(const RoundLimits& limits, double seconds) {
  double now = 100;
  return MeasureRounds(
      limits, 2, [&] { return now; },
      [&](int, size_t) {
        now += seconds / 2;
        return absl::OkStatus();
      });
}

TEST(MeasureRoundsTest, HasAsManyRoundsAsTheTimeAllows) {
  const RoundLimits limits = {.fewest = 2, .most = 15, .seconds = 10};
  EXPECT_THAT(RoundsOf(limits, 100), IsOkAndHolds(2));
  EXPECT_THAT(RoundsOf(limits, 4), IsOkAndHolds(2));
  EXPECT_THAT(RoundsOf(limits, 2), IsOkAndHolds(5));
  EXPECT_THAT(RoundsOf(limits, 0.25), IsOkAndHolds(15));
  EXPECT_THAT(RoundsOf({.rounds = 4, .most = 1, .seconds = 1}, 100),
              IsOkAndHolds(4));
}

TEST(InterruptGuardTest, EndsTheRoundAfterTheTurnAndThenTheProcess) {
  const auto interrupted = [] {
    const InterruptGuard guard;
    if (!CheckInterrupted().ok()) _exit(1);
    int turns = 0;
    const absl::StatusOr<int> rounds = MeasureRounds(
        {.rounds = 5}, 2, SteadySeconds, [&](int, size_t) -> absl::Status {
          if (++turns == 3) raise(SIGINT);
          return absl::OkStatus();
        });
    if (turns != 3 || !absl::IsCancelled(rounds.status())) _exit(2);
  };
  EXPECT_EXIT(interrupted(), testing::KilledBySignal(SIGINT),
              "interrupted by signal 2 \\(SIGINT\\)");
  EXPECT_EXIT(
      {
        const InterruptGuard guard;
        raise(SIGTERM);
        raise(SIGTERM);
        _exit(3);
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(InterruptGuardTest, LeavesIgnoredSignalsIgnoredAndGoesWithoutATrace) {
  EXPECT_EXIT(
      {
        signal(SIGHUP, SIG_IGN);
        {
          const InterruptGuard guard;
          raise(SIGHUP);
          if (!CheckInterrupted().ok()) _exit(1);
        }
        struct sigaction now;
        sigaction(SIGINT, nullptr, &now);
        _exit(now.sa_handler == SIG_DFL ? 0 : 2);
      },
      testing::ExitedWithCode(0), "");
}

TEST(MeasureRoundsTest, StopsAtTheFirstTurnThatFails) {
  int turns = 0;
  EXPECT_THAT(MeasureRounds(
                  {.rounds = 2}, 3, [] { return 0.0; },
                  [&](int, size_t subject) {
                    ++turns;
                    return subject == 1 ? absl::AbortedError("it broke")
                                        : absl::OkStatus();
                  }),
              StatusIs(absl::StatusCode::kAborted, "it broke"));
  EXPECT_EQ(turns, 2);
  EXPECT_THAT(Named("it", absl::AbortedError("broke")),
              StatusIs(absl::StatusCode::kAborted, "it: broke"));
}

report::Document Example() {
  return {.name = "lockstep.example",
          .origin = ExampleOrigin("example"),
          .bars = {{.what = "met", .needed = 1, .value = 2},
                   {.what = "not measured", .needed = 1}}};
}

absl::Status Write(const report::Document& document,
                   const std::string& folder = "") {
  const absl::StatusOr<ReportOutput> output =
      ReportOutput::Create("example", folder);
  return output.ok() ? output->Write(document) : output.status();
}

// CPUs in the columns user, nice, system, idle, iowait, irq, softirq, steal,
// guest.
constexpr char kProcStat[] =
    "cpu  9 9 9 9 9 9 9 9 9 0\n"
    "cpu0 1 2 3 40 5 6 7 8 9 0\n"
    "cpu1 1000 0 0 0 0 0 0 0 0 0\n"
    "cpu10 100 0 0 200 0 0 0 0\n"
    "intr 1 2 3\n";

TEST(ParseCpuTicksTest, AddsUpTheCpusThatAreAskedFor) {
  const std::optional<CpuTicks> ticks =
      ParseCpuTicks(kProcStat, std::vector<int>{0, 10});
  ASSERT_TRUE(ticks.has_value());
  EXPECT_EQ(ticks->busy, 1 + 2 + 3 + 8 + 100);
  EXPECT_EQ(ticks->total, 1 + 2 + 3 + 40 + 5 + 6 + 7 + 8 + 300);
  EXPECT_FALSE(ParseCpuTicks(kProcStat, std::vector<int>{0, 2}).has_value());
  EXPECT_FALSE(ParseCpuTicks(kProcStat, {}).has_value());
  EXPECT_FALSE(ParseCpuTicks("cpu0 1 2 3\n", std::vector<int>{0}).has_value());
  EXPECT_FALSE(
      ParseCpuTicks("cpu0 1 2 3 x 5 6 7 8\n", std::vector<int>{0}).has_value());
}

// To a meter that knows only an idle process, a busy child is another program.
TEST(LoadMeterTest, TellsTheBenchmarksOwnTimeFromThatOfOthers) {
  constexpr int64_t kTicks = 60;
  Subprocess idle = Subprocess::Start({"sleep", "1000"}).value();
  const LoadMeter own;
  const LoadMeter others(std::vector<pid_t>{idle.pid()});
  EXPECT_EQ(own.OthersShare(), std::nullopt);  // Too soon to measure.
  const double start = SteadySeconds();
  Subprocess busy =
      Subprocess::Start({"sh", "-c", "while :; do :; done"}).value();
  const pid_t roots[] = {busy.pid()};
  while (CpuTicksOfTrees(roots) < kTicks || SteadySeconds() - start < 1) {
    ASSERT_LT(SteadySeconds() - start, 100);
    poll(nullptr, 0, 10);
  }
  const std::optional<double> share = others.OthersShare();
  const std::optional<double> rest = own.OthersShare();
  ASSERT_TRUE(share.has_value() && rest.has_value());
  const double ticks = (SteadySeconds() - start) * 100 *
                       static_cast<double>(AffinityCpus().size());
  // Ticks are samples; a tenth of them may be missed.
  EXPECT_GE(*share, 0.9 * kTicks / ticks);
  EXPECT_LE(*rest, *share - 0.7 * kTicks / ticks);
  EXPECT_GE(*rest, 0);
  EXPECT_LE(*share, 1);
}

TEST(AddLoadTest, LeavesNoBarJudgedOnABusyMachine) {
  report::Document document = {.bars = {{.what = "speed", .value = 1}}};
  AddLoad(0.01, document);
  AddLoad(std::nullopt, document);
  EXPECT_TRUE(document.bars[0].judged);
  EXPECT_THAT(document.remarks, SizeIs(0));
  EXPECT_EQ(document.origin.others_share, std::nullopt);
  AddLoad(0.43, document);
  EXPECT_FALSE(document.bars[0].judged);
  EXPECT_EQ(document.origin.others_share, 0.43);
  EXPECT_THAT(document.remarks,
              ElementsAre("The machine was not quiet: other programs took 43% "
                          "of the cores' time. The figures include their "
                          "effect, and no bar is judged."));
}

TEST(ReportOutputTest, WritesEveryFormToTheFolder) {
  const report::Document document = Example();
  ASSERT_THAT(Write(document, TestPath("")), IsOk());
  const std::string path = TestPath("") + "/example";
  EXPECT_THAT(ReadFile(path + ".json"),
              IsOkAndHolds(report::JsonText(document)));
  EXPECT_THAT(ReadFile(path + ".html"),
              IsOkAndHolds(report::HtmlPage(document)));
  EXPECT_THAT(ReadFile(path + ".md"),
              IsOkAndHolds(report::MarkdownPage(document)));
}

TEST(ReportOutputTest, GoesWhereTheFlagsSay) {
  const absl::FlagSaver saver;
  absl::SetFlag(&FLAGS_output_dir, TestPath("") + "/chosen");
  absl::SetFlag(&FLAGS_json, TestPath("") + "/other.json");
  std::filesystem::create_directories(TestPath(""));
  ASSERT_THAT(Write(Example(), TestPath("") + "/default"), IsOk());
  EXPECT_TRUE(std::filesystem::exists(TestPath("") + "/chosen/example.json"));
  EXPECT_TRUE(std::filesystem::exists(TestPath("") + "/other.json"));
  EXPECT_FALSE(std::filesystem::exists(TestPath("") + "/default"));
}

TEST(ReportOutputTest, SaysBeforeTheRunWhatCannotBeWritten) {
  const absl::FlagSaver saver;
  EXPECT_THAT(ReportOutput::Create("example", "/dev/null/out").status(),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       StartsWith("--output_dir: cannot write to")));
  absl::SetFlag(&FLAGS_json, "/absent/x.json");
  EXPECT_THAT(ReportOutput::Create("example", "").status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("--json: cannot write to")));
}

TEST(ReportOutputTest, RequiresOfBarsThatTheyAreMetIfAsked) {
  const absl::FlagSaver saver;
  report::Document document = Example();
  document.bars.push_back({.what = "missed", .needed = 1, .value = 0.5});
  EXPECT_THAT(Write(document), IsOk());
  absl::SetFlag(&FLAGS_require_bars, true);
  EXPECT_THAT(Write(Example()), IsOk());
  EXPECT_THAT(Write(document), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        "missed, at least 1: 0.50: NOT met"));
  document.bars.back().judged = false;
  EXPECT_THAT(Write(document), IsOk());
}

TEST(OutputFlagsTest, NameTheFilesAndTheFolder) {
  Usage usage;
  usage.sections = {{"", kOutputFlags}};
  usage.words = OutputWords("example", "lockstep-example");
  EXPECT_THAT(UsageText(usage), IsOkAndHolds(R"(
  --output_dir=DIR         where to write example.json, example.html, which
                           opens offline, and example.md; default:
                           lockstep-example in the current folder
  --json=FILE              also writes the JSON there
  --require_bars=false     true: a bar that is not met is a failure

)"));
}

}  // namespace
}  // namespace lockstep::benchmarks
