// Plants faults in samplers and asks the suite.
#include "conformance/sampling/plant_fault.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "conformance/sampling/epoch_checker.h"
#include "conformance/sampling/faulty_sampler.h"
#include "conformance/sampling/resume_checker.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/sampling_subject.h"

namespace lockstep {

std::vector<SamplingFault> AllSamplingFaults() {
  std::vector<SamplingFault> all = GuardFaults();
  for (const auto& some : {EpochFaults(), ResumeFaults()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<std::string> SamplingProperties() {
  std::vector<std::string> names = EpochProperties();
  for (const std::string& name : ResumeProperties()) names.push_back(name);
  return names;
}

std::vector<SamplingCase> SamplingFaultCases() {
  constexpr int64_t kDatasetSizes[] = {1, 2, 5, 11, 24, 40};
  constexpr int kWorldSizes[] = {1, 2, 3, 4, 9};
  constexpr int64_t kBatchSizes[] = {1, 3, 7};
  return CasesOf(kDatasetSizes, kWorldSizes, kBatchSizes);
}

bool MustShow(const SamplingFault& fault, const SamplingCase& c) {
  return (StepsOf(c) > 0 || fault.property == "Guards") && fault.shows(c);
}

absl::Status CheckSampler(const SubjectFactory& make, const SamplingCase& c) {
  LOCKSTEP_RETURN_IF_ERROR(CheckEpochs(make, c));
  return CheckResuming(make, c);
}

}  // namespace lockstep
