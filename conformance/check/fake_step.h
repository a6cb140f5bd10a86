// What a rank of the made-up trainer writes of a step.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_FAKE_STEP_H_
#define LOCKSTEP_CONFORMANCE_CHECK_FAKE_STEP_H_

#include <cstdint>

#include "conformance/check/check_case.h"
#include "conformance/check/fake_model.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep {

// Adds to `output` the gradients of `step`, and the parameters and buffers
// after it, where the case asks for them.
void WriteFakeStep(const Case& c, const CaseFiles& files, int64_t step,
                   const FakeTensors& gradients, const FakeTensors& weights,
                   RankOutput& output);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_FAKE_STEP_H_
