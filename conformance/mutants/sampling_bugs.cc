// Planted bugs of samplers.
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/mutants/bug_suites.h"
#include "conformance/mutants/planted_bug.h"
#include "conformance/sampling/faulty_sampler.h"
#include "conformance/sampling/plant_fault.h"
#include "conformance/sampling/sampling_case.h"

namespace lockstep {
namespace {

absl::StatusOr<Caught> Plant(const SamplingFault& fault) {
  for (const SamplingCase& c : SamplingFaultCases()) {
    if (MustShow(fault, c)) {
      return CaughtBy(CheckSampler(MakeFaulty(fault), c));
    }
  }
  return absl::InternalError("it shows in no case");
}

}  // namespace

BugSuite SamplingBugs() {
  BugSuite suite = {"sampling", SamplingProperties(), {}};
  for (const SamplingFault& fault : AllSamplingFaults()) {
    suite.bugs.push_back({suite.folder,
                          fault.name,
                          fault.bug,
                          {fault.property},
                          fault.says,
                          [fault] { return Plant(fault); }});
  }
  return suite;
}

}  // namespace lockstep
