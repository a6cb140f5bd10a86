// Plants faults in samplers and asks the suite.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_PLANT_FAULT_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_PLANT_FAULT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "conformance/sampling/faulty_sampler.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_subject.h"

namespace lockstep {

std::vector<SamplingFault> AllSamplingFaults();

// EpochProperties and ResumeProperties.
std::vector<std::string> SamplingProperties();

// A part of the grid: sizes that divide each other, that do not, and that are
// below each other; and whether a fault must show in one of them.
std::vector<SamplingCase> SamplingFaultCases();
bool MustShow(const SamplingFault& fault, const SamplingCase& c);

// CheckEpochs, then CheckResuming.
absl::Status CheckSampler(const SubjectFactory& make, const SamplingCase& c);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_PLANT_FAULT_H_
