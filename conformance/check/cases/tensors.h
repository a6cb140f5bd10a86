// Tensors of a case's files and of ranks' outputs: made, rearranged, and as
// float64 numbers to compute with.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CASES_TENSORS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CASES_TENSORS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/rank_output.h"
#include "models/io/safetensors.h"

namespace lockstep {

// How many samples "train" or "test" has; 0 if there are no labels of it.
int64_t SampleCount(const CaseFiles& files, const std::string& part);

// The files with the samples of one part, "train" or "test", replaced by those
// of `indices`, each in [0, SampleCount), in that order.
CaseFiles WithSamples(const CaseFiles& files, const std::string& part,
                      std::span<const int64_t> indices);

using Values = std::vector<double>;
using Tensors = std::map<std::string, Values>;  // By the weights' names.

// The values of a tensor of any type: exact, except int64 beyond 2^53.
Values ToValues(const NamedTensor& tensor);

// The tensors that a rank wrote of one kind ("gradient", "parameter" or
// "buffer") and step; empty if it wrote none.
Tensors TensorsOf(const RankOutput& output, const std::string& kind,
                  int64_t step);

// The tensors of weights.safetensors, from which training starts.
Tensors StartOf(const CheckCase& check);

// NaN if any number is; 0 for no numbers.
double LargestMagnitude(std::span<const double> values);

// The largest |a - b|; NaN if any is, infinite if a and b differ in size.
double LargestDifference(std::span<const double> a, std::span<const double> b);

// a - b, a + factor * b, factor * a: element by element for values of the same
// number, tensor by tensor for the tensors that both have.
Values Minus(const Values& a, const Values& b);
Values PlusTimes(const Values& a, double factor, const Values& b);
Tensors Minus(const Tensors& a, const Tensors& b);
Tensors PlusTimes(const Tensors& a, double factor, const Tensors& b);
Tensors Times(double factor, const Tensors& a);

// The sum of weights[i] * terms[i] over the tensors that all have.
Tensors WeightedSum(std::span<const double> weights,
                    std::span<const Tensors> terms);

// One unit in the last place of a number of `digits` binary digits (24 for
// float32, 8 for bfloat16) that is as large as |value|; 0 for 0.
double UnitInLastPlace(double value, int digits);

// The names of the weights, layer by layer in the forward pass, then the
// others.
std::vector<std::string> NamesInOrder(const CheckCase& check);

// "W2 (the second convolution)"; the name alone if it is in no layer.
std::string WithLayer(const CheckCase& check, const std::string& name);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CASES_TENSORS_H_
