// The values of tensors of cuDNN's stand-in, and the operations on them.
#ifndef LOCKSTEP_STANDIN_CUDNN_COMPUTATION_H_
#define LOCKSTEP_STANDIN_CUDNN_COMPUTATION_H_

#include <cstdint>
#include <map>
#include <vector>

#include "base/data_types.h"
#include "standin/cudnn/operations.h"

namespace lockstep::standin::cudnn {

// The values of a tensor in the order [n, h, w, c], whatever its strides in
// memory: the loops of convolutions then run over adjacent channels.
using Values = std::vector<double>;

// Reads a tensor's values from memory, or writes them there, rounded to the
// tensor's type.
Values Load(const GraphTensor& tensor, const void* memory);
void Store(const GraphTensor& tensor, const Values& values, void* memory);

// Rounds the values to a type.
void RoundTo(DataType type, Values& values);

// The values of a graph's tensors, by their numbers.
using ValuesOfTensors = std::map<int64_t, Values>;

// Computes an operation that CheckOperation accepts from the values of its
// operands, and adds its results, which are not rounded. No operand may be a
// result.
void Compute(const Operation& operation, ValuesOfTensors& values);

}  // namespace lockstep::standin::cudnn

#endif  // LOCKSTEP_STANDIN_CUDNN_COMPUTATION_H_
