// Plain stochastic gradient descent.
#ifndef LOCKSTEP_MODELS_SGD_H_
#define LOCKSTEP_MODELS_SGD_H_

#include <span>

namespace lockstep {

// values[i] -= learning_rate * gradients[i]. The product is rounded to float32
// and then the difference is: never fused, so that the bits do not depend on
// the machine or on the vector width.
//
// Host float32 spans of the same size (a precondition), 0 allowed; they do not
// overlap.
void SgdUpdate(std::span<float> values, std::span<const float> gradients,
               float learning_rate);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_SGD_H_
