// The causes of wrong gradients that all ranks agree on. Internal to the judge.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_GRADIENT_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_GRADIENT_CAUSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/evidence.h"

namespace lockstep::conformance {

// Returns why the gradients `got` of `step` differ from the reference in the
// tensors `names`. The causes are tried in this order:
// - a factor with a name (NamedFactors), for all tensors or by tensor, or a sum
//   over samples;
// - a combination of the gradients of the ranks' shares;
// - an update after each micro-batch;
// - a factor without a name;
// - weight decay of another strength, within the gradient;
// - rounding to bfloat16 or float16;
// - batch norm whose backward pass sums over a rank's own batch.
// Cost: starts the trainer once per share, and twice more if the case
// accumulates micro-batches.
Diagnosis DiagnoseGradients(Evidence& evidence,
                            const std::vector<std::string>& names,
                            const Reference& reference, const Tensors& got,
                            int64_t step);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_GRADIENT_CAUSES_H_
