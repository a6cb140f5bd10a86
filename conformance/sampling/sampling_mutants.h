// Samplers with one planted fault each: what the suite must reject.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_MUTANTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {

// A fault around MakeSubject's samplers, and what must become of it. The hooks
// that are null change nothing.
struct SamplingFault {
  std::string name;  // "PadsFromTheEnd".
  std::string bug;   // What is wrong, in a phrase.
  // The first property that must reject it, what the message must contain, and
  // in which cases.
  std::string property;
  std::string says;
  bool (*shows)(const SamplingCase& c) = nullptr;

  // What the sampler is told instead.
  void (*told)(SamplingCase& c, int& rank) = nullptr;
  // What it draws instead.
  Batches (*draws)(const SamplingCase& c, int rank, int64_t epoch) = nullptr;
  // The same, from a state of another world size on.
  Batches (*draws_rest)(const SamplingCase& c, int rank,
                        const SamplerState& state) = nullptr;
  // Whether empty batches come for ever after the last.
  bool never_ends = false;
  // What num_batches() says instead.
  int64_t (*says_batches)(int64_t batches) = nullptr;
  // What it saves instead.
  void (*saves)(SamplerState& state, int rank) = nullptr;
  // What Restore does instead, ...
  absl::Status (*restores)(SamplingSubject& real, const SamplingCase& c,
                           const SamplerState& state) = nullptr;
  // ... and SetEpoch, where it was restored or not.
  void (*sets_epoch)(SamplingSubject& real,
                     const std::optional<SamplerState>& restored,
                     int64_t epoch) = nullptr;
};

// In what is refused; in whole epochs; in states.
std::vector<SamplingFault> GuardFaults();
std::vector<SamplingFault> EpochFaults();
std::vector<SamplingFault> ResumeFaults();

// Makes subjects with the fault, which they keep a copy of.
SubjectFactory MakeFaulty(const SamplingFault& fault);

// Plants faults in samplers and asks the suite.

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

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_MUTANTS_H_
