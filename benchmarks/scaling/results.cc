#include "benchmarks/scaling/results.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/scaling/settings.h"
#include "benchmarks/scaling/turn.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// Deriving a report from rounds.
namespace {

// Returns the mean power of a rank's GPU. GPUs update the energy that they have
// used several times a second, so less than a second says little.
double WattsOf(const std::vector<RoundSample>& rounds) {
  constexpr double kLeastSeconds = 1;
  double joules = 0, seconds = 0;
  for (const RoundSample& round : rounds) {
    joules += round.gpu_joules;
    seconds += round.gpu_seconds;
  }
  return seconds >= kLeastSeconds ? joules / seconds : 0;
}

ConfigurationReport SummarizeRounds(MeasuredConfiguration measured, int cores) {
  ConfigurationReport report;
  std::vector<double> throughputs, steps;
  for (const RoundSample& round : measured.rounds) {
    throughputs.push_back(round.images_per_second);
    steps.insert(steps.end(), round.step_seconds.begin(),
                 round.step_seconds.end());
  }
  const RoundSample& median = measured.rounds[MedianIndex(throughputs)];
  report.images_per_second = median.images_per_second;
  report.parts = median.parts;
  report.imbalance = median.imbalance;
  report.kept_waiting = median.kept_waiting;
  report.slowest_round = *std::ranges::min_element(throughputs);
  report.fastest_round = *std::ranges::max_element(throughputs);
  report.step_p50 = Percentile(steps, 50);
  report.step_p99 = Percentile(steps, 99);
  report.step_count = static_cast<int64_t>(steps.size());
  report.gpu_watts = WattsOf(measured.rounds);
  for (const RoundSample& round : measured.rounds) {
    report.gpu_memory_bytes =
        std::max(report.gpu_memory_bytes, round.gpu_memory_bytes);
  }
  report.measured = std::move(measured);
  report.oversubscribed = report.on_gpus()
                              ? std::ranges::count(report.measured.rounds, true,
                                                   &RoundSample::shared_gpu) > 0
                              : report.world_size() > cores;
  return report;
}

void CompareWithBaseline(const ConfigurationReport& baseline,
                         ConfigurationReport& report) {
  report.speedup = report.images_per_second / baseline.images_per_second;
  report.efficiency =
      report.speedup * baseline.world_size() / report.world_size();

  const double work = report.batch_per_rank() / baseline.batch_per_rank();
  const double step = report.step_seconds();
  for (double StepParts::*const part : kStepParts) {
    report.lost.*part =
        (report.parts.*part - work * baseline.parts.*part) / step;
  }
}

}  // namespace

ModeReport DeriveMode(ScalingMode mode,
                      std::vector<MeasuredConfiguration> measured, int cores) {
  ModeReport report = {.mode = mode};
  for (MeasuredConfiguration& configuration : measured) {
    report.configurations.push_back(
        SummarizeRounds(std::move(configuration), cores));
  }
  for (ConfigurationReport& configuration : report.configurations) {
    CompareWithBaseline(report.baseline(), configuration);
  }
  return report;
}

// The order of runs.
namespace {

constexpr int kProbeSteps = 3;

RunSpec SpecOf(const ScalingSettings& settings,
               const Configuration& configuration, int steps) {
  const double factor = static_cast<double>(configuration.global_batch) /
                        static_cast<double>(settings.batch_size);
  return {.configuration = configuration,
          .model = settings.model,
          .learning_rate = settings.learning_rate * factor,
          .steps = steps,
          .warmup_steps = settings.warmup_steps};
}

// Runs `spec` once, and shows its name before and its images/s after the run.
absl::StatusOr<RoundSample> RunAndShow(absl::string_view name,
                                       const ScalingSettings& settings,
                                       const RunSpec& spec,
                                       const ScalingRunner& run,
                                       const ScalingProgress& progress) {
  const Configuration& configuration = spec.configuration;
  const std::string variant =
      NameOf(settings, {configuration.ranks, configuration.type});
  progress(absl::StrCat(name, ": ",
                        report::Counted(configuration.world_size, "rank"), ", ",
                        variant, variant.empty() ? "" : ", ",
                        configuration.global_batch, " images a step: "));
  absl::StatusOr<RoundSample> sample = run(spec);
  progress(sample.ok()
               ? absl::StrCat(report::Significant(sample->images_per_second, 3),
                              " images/s\n")
               : std::string("failed\n"));
  return sample;
}

// Sets the number of steps, unless the settings name one. Drops rounds that do
// not fit into the time.
absl::Status ChooseRoundsAndSteps(const ScalingRunner& run,
                                  const ScalingProgress& progress,
                                  ScalingSettings& settings) {
  if (settings.steps > 0) return absl::OkStatus();
  const double start = SteadySeconds();
  RunCost round;
  for (const Configuration& configuration : DistinctConfigurations(settings)) {
    const double begin = SteadySeconds();
    LOCKSTEP_ASSIGN_OR_RETURN(
        const RoundSample sample,
        RunAndShow("probing (not counted)", settings,
                   SpecOf(settings, configuration, kProbeSteps), run,
                   progress));
    const double step = sample.parts.Sum();
    const double whole = SteadySeconds() - begin;
    round.fixed_seconds += std::max(0.0, whole - kProbeSteps * step);
    round.step_seconds += step;
  }
  const double left = settings.seconds - (SteadySeconds() - start);
  settings.rounds = RoundsWithin(left, settings.rounds, round);
  settings.steps = StepsWithin(left, settings.rounds, round);
  return absl::OkStatus();
}

// Returns the measured configurations of one variant in one mode, by world
// size.
std::vector<MeasuredConfiguration> SelectMeasured(
    const ScalingSettings& settings, ScalingMode mode, const Variant& variant,
    const std::vector<MeasuredConfiguration>& measured) {
  std::vector<MeasuredConfiguration> selected;
  for (const int world_size : settings.world_sizes) {
    const Configuration wanted =
        ConfigurationOf(settings, mode, world_size, variant);
    selected.push_back(*std::ranges::find(
        measured, wanted, &MeasuredConfiguration::configuration));
  }
  return selected;
}

// Drops the samples of a round that some configurations lack. Returns the
// number of whole rounds.
int KeepWholeRounds(std::vector<MeasuredConfiguration>& measured) {
  size_t whole = measured[0].rounds.size();
  for (const MeasuredConfiguration& each : measured) {
    whole = std::min(whole, each.rounds.size());
  }
  for (MeasuredConfiguration& each : measured) each.rounds.resize(whole);
  return static_cast<int>(whole);
}

}  // namespace

absl::StatusOr<ScalingReport> MeasureScaling(const ScalingSettings& settings,
                                             int cores,
                                             const ScalingRunner& run,
                                             const ScalingProgress& progress) {
  ScalingReport report = {.settings = settings};
  LOCKSTEP_RETURN_IF_ERROR(
      ChooseRoundsAndSteps(run, progress, report.settings));
  std::vector<MeasuredConfiguration> measured;
  for (const Configuration& configuration : DistinctConfigurations(settings)) {
    measured.push_back({.configuration = configuration, .rounds = {}});
  }
  const int rounds = report.settings.rounds;
  const auto take_turn = [&](int round, size_t next) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(
        RoundSample sample,
        RunAndShow(absl::StrCat("round ", round + 1, " of ", rounds), settings,
                   SpecOf(settings, measured[next].configuration,
                          report.settings.steps),
                   run, progress));
    measured[next].rounds.push_back(std::move(sample));
    return absl::OkStatus();
  };
  const absl::Status status = MeasureRounds({.rounds = rounds}, measured.size(),
                                            SteadySeconds, take_turn)
                                  .status();
  const int whole = KeepWholeRounds(measured);
  if (!absl::IsCancelled(status) || whole == 0) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  if (!status.ok()) {
    report.ended = absl::StrCat("ended after ", whole, " of ", rounds,
                                " rounds: ", status.message());
  }
  for (const ScalingMode mode : settings.modes) {
    std::vector<ModeReport> variants;
    for (const Variant& variant : VariantsOf(settings)) {
      ModeReport& at = variants.emplace_back(DeriveMode(
          mode, SelectMeasured(settings, mode, variant, measured), cores));
      at.variant = variant;
      at.limits = DescribeLimits(at, cores);
      // The first report of this type has the first backend.
      const ModeReport& first = *std::ranges::find(
          variants, variant.type,
          [](const ModeReport& m) { return m.variant.type; });
      if (&first == &at) continue;
      const std::string ratio = CompareBackends(at, first);
      if (!ratio.empty()) absl::StrAppend(&at.limits, " ", ratio);
    }
    std::ranges::move(variants, std::back_inserter(report.modes));
  }
  return report;
}

namespace {

using report::Percent;

std::string Ranks(int count) { return report::Counted(count, "rank"); }

// Shares below half a percent are left out, because they would print as 0%.
constexpr double kMinReportedShare = 0.005;
constexpr double kReportedImbalance = 0.05;
constexpr double kReportedSpread = 0.10;
constexpr double kReportedWaiting = 0.05;

std::string Milliseconds(double seconds) {
  return absl::StrFormat("%.2f ms", 1e3 * seconds);
}

// Returns the largest number of images that a rank computes in a step.
int64_t ImagesPerRank(const ConfigurationReport& report) {
  return (report.global_batch() + report.world_size() - 1) /
         report.world_size();
}

std::string DescribeCompute(ScalingMode mode, const ConfigurationReport& base,
                            const ConfigurationReport& at) {
  const double ratio = at.parts.compute / base.parts.compute;
  const double beyond = at.lost.compute * at.step_seconds();
  const std::string difference = absl::StrCat(Milliseconds(std::abs(beyond)),
                                              beyond > 0 ? " more" : " less");
  if (mode == ScalingMode::kWeak) {
    return absl::StrFormat(
        "a rank's %d images take %.2f times as long as at %s: %s a step",
        ImagesPerRank(at), ratio, Ranks(base.world_size()), difference);
  }
  return absl::StrFormat(
      "a rank's %d images take %s of the time of %d at %s, not %s: %s a step",
      ImagesPerRank(at), Percent(ratio), ImagesPerRank(base),
      Ranks(base.world_size()),
      Percent(static_cast<double>(base.world_size()) / at.world_size()),
      difference);
}

// Returns the part of the exposed communication that is waiting for the slowest
// rank. The mean rank waits for the slowest rank's gradients. The mean rank's
// own backward hides some of that wait, so the wait is at most the exposed
// communication.
double SlowestRankWait(const ConfigurationReport& at) {
  return std::min(at.imbalance * at.parts.compute,
                  at.parts.exposed_communication);
}

std::string DescribeCommunication(const ConfigurationReport& at) {
  std::string text =
      absl::StrCat(Milliseconds(at.parts.exposed_communication), " a step");
  const double waiting = SlowestRankWait(at);
  if (waiting >= kMinReportedShare * at.step_seconds()) {
    absl::StrAppend(&text, ", of which up to ", Milliseconds(waiting),
                    " is waiting for the slowest rank");
  }
  return text;
}

struct Loss {
  double share;
  std::string name;
  std::string detail;
};

// Returns the losses of efficiency, the largest first, then the gains.
std::vector<Loss> Losses(ScalingMode mode, const ConfigurationReport& base,
                         const ConfigurationReport& at) {
  std::vector<Loss> losses = {
      {at.lost.compute, "compute", DescribeCompute(mode, base, at)},
      {at.lost.exposed_communication, "exposed communication",
       DescribeCommunication(at)},
      {at.lost.data_wait, "data wait",
       absl::StrCat(Milliseconds(at.parts.data_wait), " a step")},
      {at.lost.rest, "the rest of the step",
       absl::StrCat(Milliseconds(at.parts.rest), " a step")}};
  std::erase_if(losses, [](const Loss& loss) {
    return std::abs(loss.share) < kMinReportedShare;
  });
  std::ranges::sort(losses, std::greater<>(), &Loss::share);
  return losses;
}

std::string DescribeEfficiency(const ModeReport& report,
                               const ConfigurationReport& at) {
  const double lost = 1 - at.efficiency;
  std::string text = absl::StrFormat(
      "At %s, %s scaling reaches %.2f times the images/s of %s: %s of ideal.",
      Ranks(at.world_size()), Name(report.mode), at.speedup,
      Ranks(report.baseline().world_size()), Percent(at.efficiency));
  if (report.variant.ranks == RankKind::kDdp) return text;
  if (lost < kMinReportedShare) return text + " Nothing limits it here.";
  std::vector<std::string> takes, gives;
  for (const Loss& loss : Losses(report.mode, report.baseline(), at)) {
    (loss.share > 0 ? takes : gives)
        .push_back(absl::StrCat(Percent(std::abs(loss.share)), " ", loss.name,
                                " (", loss.detail, ")"));
  }
  if (takes.empty()) return text;  // Each part's loss is small.
  absl::StrAppend(&text, " The ", Percent(lost),
                  " of a step that is lost: ", absl::StrJoin(takes, "; "));
  if (!gives.empty()) {
    absl::StrAppend(&text, "; less a gain of ", absl::StrJoin(gives, "; "));
  }
  return text + ".";
}

// Returns the configuration that the sentences describe: the largest world size
// with a core for each rank, or the last one if only the baseline has enough
// cores.
const ConfigurationReport& DescribedConfiguration(const ModeReport& report) {
  const ConfigurationReport* subject = &report.configurations.back();
  for (const ConfigurationReport& at : report.configurations) {
    if (&at != &report.baseline() && !at.oversubscribed) subject = &at;
  }
  return *subject;
}

double WorstSpread(const ModeReport& report) {
  double worst = 0;
  for (const ConfigurationReport& at : report.configurations) {
    worst = std::max(
        worst, (at.fastest_round - at.slowest_round) / at.images_per_second);
  }
  return worst;
}

}  // namespace

std::string DescribeLimits(const ModeReport& report, int cores) {
  std::vector<std::string> sentences;
  const ConfigurationReport& subject = DescribedConfiguration(report);
  if (report.configurations.size() == 1) {
    sentences.push_back("One world size alone says nothing about scaling.");
  } else {
    sentences.push_back(DescribeEfficiency(report, subject));
  }
  if (subject.oversubscribed) {
    sentences.push_back(absl::StrCat(
        "Its ranks share ",
        subject.on_gpus() ? "GPUs" : report::Counted(cores, "core"),
        ", which alone keeps it from scaling."));
  } else if (subject.kept_waiting >= kReportedWaiting) {
    sentences.push_back(absl::StrCat(
        "The cores were busy otherwise (with the ranks' own communication "
        "threads, or with other programs): ranks with something to do did not "
        "run ",
        Percent(subject.kept_waiting), " of the time (",
        Percent(report.baseline().kept_waiting), " at ",
        Ranks(report.baseline().world_size()), ")."));
  }
  if (subject.imbalance >= kReportedImbalance) {
    sentences.push_back(absl::StrCat("The slowest rank of a step computes ",
                                     Percent(subject.imbalance),
                                     " longer than the mean."));
  }
  const double spread = WorstSpread(report);
  if (spread >= kReportedSpread) {
    sentences.push_back(absl::StrCat(
        "Rounds of one configuration differ by up to ", Percent(spread),
        ": the machine was not quiet, so read small differences with care."));
  }
  return absl::StrJoin(sentences, " ");
}

std::string CompareBackends(const ModeReport& report, const ModeReport& other) {
  const ConfigurationReport& at = DescribedConfiguration(report);
  const ConfigurationReport& against = DescribedConfiguration(other);
  if (at.world_size() == 1) return "";
  std::vector<double> ratios;
  for (size_t i = 0; i < at.measured.rounds.size(); ++i) {
    ratios.push_back(at.measured.rounds[i].images_per_second /
                     against.measured.rounds[i].images_per_second);
  }
  const auto [least, most] = std::ranges::minmax(ratios);
  return absl::StrFormat(
      "Its images/s at %s are %.2f times those of %s (%.2f to %.2f by round).",
      Ranks(at.world_size()), Percentile(ratios, 50), Name(other.variant.ranks),
      least, most);
}

}  // namespace lockstep::benchmarks
