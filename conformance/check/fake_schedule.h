// Which samples the fake trainer's ranks take in which step.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_FAKE_SCHEDULE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_FAKE_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "conformance/check/check_case.h"
#include "conformance/check/fake_fault.h"

namespace lockstep {

struct FakeStep {
  int64_t epoch = 0;
  std::vector<std::vector<int64_t>> shares;  // By rank.
};

// All steps of a run on `size` samples, of both starts where there are two.
std::vector<FakeStep> FakeSchedule(const CasePlan& plan, int64_t size,
                                   FakeFault fault);

// The test samples of each rank: every N-th.
std::vector<std::vector<int64_t>> FakeTestShares(int world_size, int64_t size,
                                                 FakeFault fault);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_FAKE_SCHEDULE_H_
