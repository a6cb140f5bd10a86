// Layers one after the other, themselves a layer.
#ifndef LOCKSTEP_MODELS_CPU_SEQUENTIAL_H_
#define LOCKSTEP_MODELS_CPU_SEQUENTIAL_H_

#include <memory>
#include <string>
#include <vector>

#include "models/cpu/layer.h"

namespace lockstep {

// layers: at least one, each fitting the output of the one before. Saves their
// outputs between forward and backward; temporary space is shared by all.
std::unique_ptr<Layer> CreateSequential(
    std::string name, std::vector<std::unique_ptr<Layer>> layers);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_SEQUENTIAL_H_
