// Numbers as a layer's memory holds them, and where they lie in it.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_VALUES_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_VALUES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "collectives/data_type.h"
#include "syncbn/activations.h"

namespace lockstep {

// The nearest number that `type`, one of IsActivationType, can hold.
double RoundTo(DataType type, double value);

// Elements of `type`, each rounded to it.
std::string Encode(DataType type, std::span<const double> values);
std::vector<double> Decode(DataType type, absl::string_view bytes);

// Values [n, c, hw] in the order of the shape's layout, and back.
std::vector<double> ToLayout(const ActivationShape& shape,
                             std::span<const double> nchw);
std::vector<double> FromLayout(const ActivationShape& shape,
                               std::span<const double> values);

// Random bits of a key: the same on every machine.
uint64_t Hash(uint64_t key);
// In [-1, 1).
double Uniform(uint64_t key);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_VALUES_H_
