// How operations on each activation by itself go over a tensor.
#ifndef LOCKSTEP_SYNCBN_CPU_RUN_PLAN_H_
#define LOCKSTEP_SYNCBN_CPU_RUN_PLAN_H_

#include <cstdint>

#include "syncbn/activations.h"
#include "syncbn/cpu/column_plan.h"

namespace lockstep {

// Activations as runs that lie one after the other: with channels last of some
// whole pixels, so that parameters go by the place in a run; with channels
// first of one plane, whose values all have the same.
struct RunPlan {
  int64_t channels = 1;
  bool by_column = false;
  int64_t run = 1;
  int64_t runs = 0;
  int64_t size = 0;  // The last run may be short.

  // Elements of an array of parameters.
  int64_t parameters() const { return by_column ? run : channels; }
};

inline RunPlan MakeRunPlan(const ActivationShape& shape) {
  RunPlan plan;
  plan.channels = shape.c;
  plan.by_column = IsChannelsLast(shape);
  plan.run = plan.by_column ? shape.c * PixelsPerRow(shape.c) : shape.hw;
  plan.size = shape.size();
  plan.runs = (plan.size + plan.run - 1) / plan.run;
  return plan;
}

// Repeats the first `channels` values up to `size`.
template <typename T>
void RepeatChannels(int64_t channels, int64_t size, T* values) {
  for (int64_t i = channels; i < size; ++i) values[i] = values[i - channels];
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_RUN_PLAN_H_
