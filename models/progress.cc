// Progress lines.
#include "models/progress.h"

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/data_parallel.h"
#include "models/model.h"
#include "models/trainer.h"

namespace lockstep {
namespace {

constexpr int64_t kSumsPerEpoch = 10;
constexpr absl::Duration kInterval = absl::Seconds(1);

// "step  12/235": `done` as wide as `total`, so that lines align.
std::string Counter(const char* what, int64_t done, int64_t total) {
  const int width = static_cast<int>(absl::StrCat(total).size());
  return absl::StrFormat("%s %*d/%d", what, width, done, total);
}

double Mean(double sum, int64_t count) {
  return sum / static_cast<double>(count);
}

}  // namespace

Progress::Progress(Communicator& communicator, int64_t epochs,
                   std::ostream& out, bool rewrite)
    : communicator_(communicator),
      epochs_(epochs),
      out_(out),
      rewrite_(rewrite) {}

absl::Status Progress::OnStep(const StepReport& report) {
  shard_ += report.shard_metrics;
  wall_ += report.wall;
  const int64_t done = report.step + 1;
  const int64_t interval =
      std::max<int64_t>(1, report.steps_per_epoch / kSumsPerEpoch);
  if (done % interval != 0) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics sum,
                            AllReduceMetrics(communicator_, shard_));
  shard_ = Metrics();
  unprinted_ += sum;
  if (communicator_.rank() == 0 && (!printed_ || wall_ >= kInterval)) {
    Print(report, unprinted_);
    unprinted_ = Metrics();
    wall_ = absl::ZeroDuration();
    printed_ = true;
  }
  return absl::OkStatus();
}

void Progress::Print(const StepReport& report, const Metrics& sum) {
  const std::string line = absl::StrFormat(
      "%s  %s  loss %.4f  accuracy %.3f  %.0f images/s",
      Counter("epoch", report.epoch + 1, epochs_),
      Counter("step", report.step + 1, report.steps_per_epoch),
      Mean(sum.loss_sum, sum.samples),
      Mean(static_cast<double>(sum.correct), sum.samples),
      static_cast<double>(sum.samples) / absl::ToDoubleSeconds(wall_));
  // The cursor waits at the start of the line, so that whatever is printed
  // next, an error too, takes its place.
  out_ << (rewrite_ ? absl::StrCat("\x1b[2K", line, "\r")
                    : absl::StrCat(line, "\n"))
       << std::flush;
}

void Progress::OnEpoch(const EpochSummary& summary) {
  shard_ = Metrics();
  unprinted_ = Metrics();
  wall_ = absl::ZeroDuration();
  if (communicator_.rank() != 0) return;
  out_ << (rewrite_ ? "\x1b[2K" : "")
       << absl::StrFormat(
              "%s  train loss %.4f  train accuracy %.3f  test accuracy %.4f  "
              "%.0f images/s  %.1f s\n",
              Counter("epoch", summary.epoch + 1, epochs_),
              Mean(summary.train.loss_sum, summary.train.samples),
              Mean(static_cast<double>(summary.train.correct),
                   summary.train.samples),
              Mean(static_cast<double>(summary.test.correct),
                   summary.test.samples),
              summary.images_per_second(),
              absl::ToDoubleSeconds(summary.train_time))
       << std::flush;
}

}  // namespace lockstep
