// What a training run tells the person who watches it.
#ifndef LOCKSTEP_MODELS_PROGRESS_H_
#define LOCKSTEP_MODELS_PROGRESS_H_

#include <cstdint>
#include <ostream>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "models/trainer.h"

namespace lockstep {

// One epoch over all ranks.
struct EpochSummary {
  int64_t epoch = 0;          // From 0.
  Metrics train;              // While the parameters changed.
  Metrics test;               // Of the whole test set, after the epoch.
  absl::Duration train_time;  // Without evaluation.
  StepTimes times;            // Of this rank, summed over the steps.

  double images_per_second() const {
    return static_cast<double>(train.samples) /
           absl::ToDoubleSeconds(train_time);
  }
};

// Prints, on rank 0, a line about ten times an epoch but at most once a second,
//
//   epoch  1/10  step  120/235  loss 2.3012  accuracy 0.112  12345 images/s
//
// with what happened since the line before it, on all ranks together, and a
// line after each epoch. Not thread safe.
class Progress {
 public:
  // Borrows both. rewrite: `out` is a terminal, on which each line takes the
  // place of the one before it, up to the end of the epoch.
  Progress(Communicator& communicator, int64_t epochs, std::ostream& out,
           bool rewrite);

  // To be called after every step on every rank, since it sums over the ranks,
  // at steps that depend on the number of steps alone. Errors: the
  // communicator's.
  absl::Status OnStep(const StepReport& report);

  // To be called after every epoch; prints on rank 0.
  void OnEpoch(const EpochSummary& summary);

 private:
  void Print(const StepReport& report, const Metrics& sum);

  Communicator& communicator_;
  const int64_t epochs_;
  std::ostream& out_;
  const bool rewrite_;
  Metrics shard_;        // Since the last sum.
  Metrics unprinted_;    // Over all ranks, since the last line.
  absl::Duration wall_;  // Since the last line.
  bool printed_ = false;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_PROGRESS_H_
