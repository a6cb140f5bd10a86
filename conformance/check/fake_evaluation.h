// The fake trainer's evaluation.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_FAKE_EVALUATION_H_
#define LOCKSTEP_CONFORMANCE_CHECK_FAKE_EVALUATION_H_

#include <vector>

#include "conformance/check/fake_fault.h"
#include "conformance/check/fake_model.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep {

// What each rank reports of the test set, with its weights, in batches of its
// size. None without weights.
std::vector<EvaluationOutput> FakeEvaluations(
    const Case& c, const CaseFiles& files,
    const std::vector<FakeTensors>& weights, FakeFault fault);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_FAKE_EVALUATION_H_
