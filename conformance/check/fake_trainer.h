// A trainer of the little model, right or with one mistake, that ranks do not
// really run: it gives what a judged trainer's processes would have written.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_FAKE_TRAINER_H_
#define LOCKSTEP_CONFORMANCE_CHECK_FAKE_TRAINER_H_

#include "conformance/check/check_case.h"
#include "conformance/check/fake_fault.h"
#include "conformance/check/trainer_run.h"
#include "conformance/protocol/case.h"

namespace lockstep {

// One run of the plan, joined where it has two starts. `files` must be of a
// case WithFakeModel.
TrainerRun FakeRun(const CasePlan& plan, const CaseFiles& files,
                   FakeFault fault);

// All runs of a case, and probes, by a trainer with `fault`.
CaseRuns FakeRuns(const CheckCase& check, FakeFault fault);
RunProbe FakeProbe(FakeFault fault);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_FAKE_TRAINER_H_
