// Tensors of a case's files, made and rearranged.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CASE_FILES_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CASE_FILES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "conformance/protocol/case.h"
#include "models/safetensors.h"

namespace lockstep {

NamedTensor FloatTensor(std::vector<int64_t> shape,
                        std::span<const float> values);
NamedTensor Int64Tensor(std::vector<int64_t> shape,
                        std::span<const int64_t> values);

// How many samples "train" or "test" has; 0 if there are no labels of it.
int64_t SampleCount(const CaseFiles& files, const std::string& part);

// The files with the samples of one part, "train" or "test", replaced by those
// of `indices`, each in [0, SampleCount), in that order.
CaseFiles WithSamples(const CaseFiles& files, const std::string& part,
                      std::span<const int64_t> indices);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CASE_FILES_H_
