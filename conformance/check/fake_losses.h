// What ranks of a made-up trainer report as the loss of a step, with the
// mistakes put in.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_FAKE_LOSSES_H_
#define LOCKSTEP_CONFORMANCE_CHECK_FAKE_LOSSES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "conformance/check/fake_fault.h"
#include "conformance/check/fake_model.h"
#include "conformance/protocol/case.h"

namespace lockstep {

// By rank: the mean over its samples, none if it has none. `shares` are the
// ranks' samples, `passes` what they computed.
std::vector<std::optional<double>> FakeLosses(
    const Case& c, const std::vector<std::vector<int64_t>>& shares,
    const std::vector<FakePass>& passes, FakeFault fault);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_FAKE_LOSSES_H_
