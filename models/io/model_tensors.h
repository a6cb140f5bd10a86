// A model's parameters and buffers as the named tensors of a file.
#ifndef LOCKSTEP_MODELS_IO_MODEL_TENSORS_H_
#define LOCKSTEP_MODELS_IO_MODEL_TENSORS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/io/safetensors.h"
#include "models/model.h"

namespace lockstep {

// Each parameter's value, or its gradient, as a float32 tensor under its name.
NamedTensors ValueTensors(const Parameters& parameters);
NamedTensors GradientTensors(const Parameters& parameters);

// Each buffer under its name: a float32 tensor, or an int64 scalar.
NamedTensors BufferTensors(const Buffers& buffers);

// Copies the values of all parameters and buffers from `tensors`, the content
// of `file`. Errors: kInvalidArgument, with the file and the tensor, if one is
// missing, is none of the model's, or has another type or shape; parameters and
// buffers are then as before.
absl::Status LoadTensors(const NamedTensors& tensors, absl::string_view file,
                         Parameters& parameters, Buffers& buffers);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_IO_MODEL_TENSORS_H_
