// Sentences built from numbers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "benchmarks/scaling/report.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

using report::Percent;

std::string Ranks(int count) { return report::Counted(count, "rank"); }

// Shares below half a percent are left out: they would print as 0%.
constexpr double kWorthSaying = 0.005;
constexpr double kMuchImbalance = 0.05;
constexpr double kMuchSpread = 0.10;
constexpr double kMuchWaiting = 0.05;

std::string Milliseconds(double seconds) {
  return absl::StrFormat("%.2f ms", 1e3 * seconds);
}

// Images a rank computes in a step: the most that any has.
int64_t ImagesPerRank(const ConfigurationReport& report) {
  return (report.global_batch() + report.world_size() - 1) /
         report.world_size();
}

std::string DescribeCompute(ScalingMode mode, const ConfigurationReport& base,
                            const ConfigurationReport& at) {
  const double ratio = at.parts.compute / base.parts.compute;
  if (mode == ScalingMode::kWeak) {
    return absl::StrFormat(
        "a rank's %d images take %.2f times as long as at %s",
        ImagesPerRank(at), ratio, Ranks(base.world_size()));
  }
  return absl::StrFormat(
      "a rank's %d images take %s of the time of %d at %s, not %s",
      ImagesPerRank(at), Percent(ratio), ImagesPerRank(base),
      Ranks(base.world_size()),
      Percent(static_cast<double>(base.world_size()) / at.world_size()));
}

struct Loss {
  double share;
  std::string name;
  std::string detail;
};

// What takes from the efficiency, the worst first, then what adds to it.
std::vector<Loss> Losses(ScalingMode mode, const ConfigurationReport& base,
                         const ConfigurationReport& at) {
  std::vector<Loss> losses = {
      {at.lost.compute, "compute", DescribeCompute(mode, base, at)},
      {at.lost.exposed_communication, "exposed communication",
       absl::StrCat(Milliseconds(at.parts.exposed_communication), " a step")},
      {at.lost.data_wait, "data wait",
       absl::StrCat(Milliseconds(at.parts.data_wait), " a step")},
      {at.lost.rest, "the rest of the step",
       absl::StrCat(Milliseconds(at.parts.rest), " a step")}};
  std::erase_if(losses, [](const Loss& loss) {
    return std::abs(loss.share) < kWorthSaying;
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
  if (lost < kWorthSaying) return text + " Nothing limits it here.";
  std::vector<std::string> takes, gives;
  for (const Loss& loss : Losses(report.mode, report.baseline(), at)) {
    (loss.share > 0 ? takes : gives)
        .push_back(absl::StrCat(Percent(std::abs(loss.share)), " ", loss.name,
                                " (", loss.detail, ")"));
  }
  absl::StrAppend(&text, " The ", Percent(lost),
                  " of a step that is lost: ", absl::StrJoin(takes, "; "));
  if (!gives.empty()) {
    absl::StrAppend(&text, "; less a gain of ", absl::StrJoin(gives, "; "));
  }
  return text + ".";
}

// The others wait for the slowest rank when they need its gradients, so what it
// computes longer than the mean is exposed communication to the mean rank,
// unless the overlap with its own backward hides some of it.
std::string DescribeImbalance(const ConfigurationReport& at) {
  const double waited =
      std::min(at.imbalance * at.parts.compute, at.parts.exposed_communication);
  return absl::StrFormat(
      "The slowest rank of a step computes %s longer than the mean; waiting "
      "for it is up to %s of the %s of exposed communication.",
      Percent(at.imbalance), Milliseconds(waited),
      Milliseconds(at.parts.exposed_communication));
}

// The configuration to talk about.
const ConfigurationReport& Subject(const ModeReport& report) {
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
  const ConfigurationReport& subject = Subject(report);
  if (report.configurations.size() == 1) {
    sentences.push_back("One world size alone says nothing about scaling.");
  } else {
    sentences.push_back(DescribeEfficiency(report, subject));
  }
  if (subject.oversubscribed) {
    sentences.push_back(absl::StrCat("Its ranks share ", cores,
                                     cores == 1 ? " core" : " cores",
                                     ", which alone keeps it from scaling."));
  } else if (subject.kept_waiting >= kMuchWaiting) {
    sentences.push_back(absl::StrCat(
        "The cores were busy otherwise (with the ranks' own communication "
        "threads, or with other programs): ranks with something to do did not "
        "run ",
        Percent(subject.kept_waiting), " of the time (",
        Percent(report.baseline().kept_waiting), " at ",
        Ranks(report.baseline().world_size()), ")."));
  }
  if (subject.imbalance >= kMuchImbalance) {
    sentences.push_back(DescribeImbalance(subject));
  }
  const double spread = WorstSpread(report);
  if (spread >= kMuchSpread) {
    sentences.push_back(absl::StrCat(
        "Rounds of one configuration differ by up to ", Percent(spread),
        ": the machine was not quiet, so read small differences with care."));
  }
  return absl::StrJoin(sentences, " ");
}

}  // namespace lockstep::benchmarks
