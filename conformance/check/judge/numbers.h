// Tensors of a run's output as numbers, and what lies between two of them.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_NUMBERS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_NUMBERS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/rank_output.h"
#include "models/io/safetensors.h"

namespace lockstep {

using Values = std::vector<double>;
using Tensors = std::map<std::string, Values>;  // By the weights' names.

// Every type, exactly but for int64 beyond 2^53.
Values ToValues(const NamedTensor& tensor);

// Those that `output` has of a kind, "gradient", "parameter" or "buffer", and
// step. None if it has none.
Tensors TensorsOf(const RankOutput& output, const std::string& kind,
                  int64_t step);

// Those of weights.safetensors.
Tensors StartOf(const CheckCase& check);

// NaN if any number is. Of no numbers: 0.
double LargestMagnitude(std::span<const double> values);

// The largest |a - b|; NaN if any is, infinite if they differ in number.
double LargestDifference(std::span<const double> a, std::span<const double> b);

// a - b, a + factor * b, factor * a; element by element, of equally many, or of
// the tensors that both have.
Values Minus(const Values& a, const Values& b);
Values PlusTimes(const Values& a, double factor, const Values& b);
Tensors Minus(const Tensors& a, const Tensors& b);
Tensors PlusTimes(const Tensors& a, double factor, const Tensors& b);
Tensors Times(double factor, const Tensors& a);

// The sum of weights[i] * terms[i] over the tensors that all have.
Tensors WeightedSum(std::span<const double> weights,
                    std::span<const Tensors> terms);

// One unit in the last place of a number of `digits` binary digits (24 for
// float32, 8 for bfloat16) that is as large as |value|; of 0: 0.
double UnitInLastPlace(double value, int digits);

// The names of the weights, layer by layer in the forward pass, then the
// others.
std::vector<std::string> NamesInOrder(const CheckCase& check);

// "W2 (the second convolution)"; the name alone if it is in no layer.
std::string WithLayer(const CheckCase& check, const std::string& name);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_NUMBERS_H_
