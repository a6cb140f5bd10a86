// Faults in what is refused: ranks beside the group, sizes below 1, and epochs
// of no step.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "conformance/sampling/faulty_sampler.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_reference.h"

namespace lockstep {
namespace {

bool HasSteps(const SamplingCase& c) { return StepsOf(c) > 0; }

}  // namespace

std::vector<SamplingFault> GuardFaults() {
  return {
      {.name = "TakesRanksModulo",
       .bug = "a rank outside the group is taken for another",
       .property = "Guards",
       .says = "a rank of -1 is not refused",
       .shows = HasSteps,
       .told =
           [](SamplingCase& c, int& rank) {
             if (c.world_size > 0 && (rank < 0 || rank >= c.world_size)) {
               rank = 0;
             }
           }},
      {.name = "TakesAnEmptyEpoch",
       .bug = "an epoch of which drop_last leaves nothing is taken",
       .property = "Guards",
       .says = "an epoch that drop_last empties is not refused",
       .shows = [](const SamplingCase& c) { return StepsOf(c) == 0; },
       .told =
           [](SamplingCase& c, int&) {
             if (c.world_size < 1 || c.batch_size < 1 || StepsOf(c) > 0) return;
             c.drop_tail = c.drop_last = false;
           }},
      {.name = "CountsRanksFromOne",
       .bug = "a rank of the world size is taken",
       .property = "Guards",
       .says = "a rank as large as the world is not refused",
       .shows = HasSteps,
       .told =
           [](SamplingCase& c, int& rank) {
             if (c.world_size > 0 && rank == c.world_size) rank = 0;
           }},
      {.name = "TakesNoSamples",
       .bug = "a data set of less than one sample is taken for one of one",
       .property = "Guards",
       .says = "a dataset_size of 0 is not refused",
       // Else that sample is dropped.
       .shows =
           [](const SamplingCase& c) { return !c.drop_tail && !c.drop_last; },
       .told =
           [](SamplingCase& c, int&) {
             c.dataset_size = std::max<int64_t>(1, c.dataset_size);
           }},
      {.name = "TakesNoRanks",
       .bug = "a world of less than one rank is taken for one of one",
       .property = "Guards",
       .says = "a world_size of 0 is not refused",
       .shows = HasSteps,
       .told = [](SamplingCase& c,
                  int&) { c.world_size = std::max(1, c.world_size); }},
      {.name = "TakesNoBatch",
       .bug = "batches of less than one sample are taken for batches of one",
       .property = "Guards",
       .says = "a batch_size of 0 is not refused",
       .shows = HasSteps,
       .told = [](SamplingCase& c,
                  int&) { c.batch_size = std::max<int64_t>(1, c.batch_size); }},
  };
}

}  // namespace lockstep
